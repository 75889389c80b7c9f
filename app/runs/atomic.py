"""Files that are there whole or as they were, whatever happens while they are written."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_DIGEST = 32
"""Bytes of a SHA-256."""


class DamagedError(ValueError):
    """A file is not what was written; names it."""


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Where to write; what lies there takes the place of `path` unless something is raised.

    Parameters
    ----------
    durable : it is on the disk, under its name, before this returns: no power cut takes it back.
    """
    draft = _fresh(path)
    try:
        yield draft
        if durable:
            sync(draft)
        os.replace(draft, path)
        if durable and sys.platform != "win32":
            sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _fresh(path: Path) -> Path:
    """Make an empty file beside `path`, under a name that nobody can have put a link at."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return draft


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write text in UTF-8, or bytes."""
    with replacing(path, durable=durable) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_checked(path: Path, *, bound: bytes, durable: bool = False) -> Iterator[Path]:
    """`replacing` with a digest at the end, in which `bound` says what the file belongs to."""
    with replacing(path, durable=durable) as draft:
        yield draft
        with (
            draft.open("r+b") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            found = _digest(content, bound)
            file.seek(0, os.SEEK_END)
            file.write(found)


def read_checked(path: Path, *, bound: bytes) -> bytes:
    """Read what was written into `replacing_checked`.

    Raises
    ------
    DamagedError
        It is not that any more, or belongs to something else.
    """
    content = path.read_bytes()
    body = content[:-_DIGEST]
    if content[-_DIGEST:] != _digest(body, bound):
        raise DamagedError(f"{path}: damaged, or of another run")
    return body


def _digest(content: bytes | mmap.mmap, bound: bytes) -> bytes:
    found = hashlib.sha256(hashlib.sha256(bound).digest())
    found.update(content)
    return found.digest()


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file; it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path, start: int = 0) -> list[dict[str, Any]]:
    """What `append` added from byte `start` on; nothing where there is no such file.

    Raises
    ------
    ValueError
        A line is damaged; names the file.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    try:
        found = [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError):
        found = [None]
    if not all(isinstance(line, dict) for line in found):
        raise ValueError(f"{path} has a line that is damaged")
    return found
