"""Download of files from public sources: https, bounded in size, with a known digest."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie.app.lab.catalogue.sets import File
from coterie.datasets.files.locate import TIMEOUT
from coterie.datasets.problem import DataError


def download(file: File) -> bytes:
    """Download a file and check its digest; DataError if unreachable or of another content."""
    try:
        if urlsplit(file.url).scheme != "https":
            raise urllib.error.URLError("not https")
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(file.url, timeout=TIMEOUT) as answer:
            content = answer.read(file.size + 1)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{file.url}: the download failed ({reason}); download it with a browser, then add "
            "--from FOLDER"
        ) from None
    return checked(content, file, file.url)


def read(folder: Path, file: File) -> bytes:
    """Read a file that was downloaded by other means, and check its digest."""
    path = folder / file.name
    try:
        with path.open("rb") as opened:
            content = opened.read(file.size + 1)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; download it from {file.url}") from None
    return checked(content, file, str(path))


def checked(content: bytes, file: File, origin: str) -> bytes:
    """Return the content if size and digest are the file's, else raise DataError."""
    if len(content) != file.size:
        size = f"more than {file.size}" if len(content) > file.size else f"{len(content)}"
        raise DataError(f"{origin}: {size} bytes, expected {file.size}; nothing was written")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{origin}: SHA-256 {digest}, expected {file.sha256}: the file is not the published "
            "one; nothing was written"
        )
    return content


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects to https only."""

    def redirect_request(self, *answer: Any) -> urllib.request.Request | None:
        if urlsplit(url := answer[-1]).scheme != "https":
            raise urllib.error.URLError(f"redirected to {url}, which is not https")
        return super().redirect_request(*answer)
