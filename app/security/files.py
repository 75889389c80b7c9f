"""Permission checks and restrictions for files and folders of one owner."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def writable_by_others(path: Path) -> str:
    """Return the way in which others could change a file, with the remedy; "" if they cannot.

    A user who may write to a folder above the file can replace the file, unless the folder is
    sticky, like /tmp.
    """
    if path.stat().st_mode & _WRITABLE:
        return f"others may write to it: chmod go-w {path}"
    for folder in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        mode = folder.stat().st_mode
        if mode & _WRITABLE and not mode & stat.S_ISVTX:
            return f"others may write to the folder {folder}: chmod go-w {folder}"
    return ""


@contextmanager
def closed(mask: int = 0o077) -> Iterator[None]:
    """Create files and folders that only their owner can access, inside this context.

    With the mask 0o022, others can read but not change them.
    """
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def close(folder: Path) -> None:
    """Remove the access of others to a folder, if it exists and belongs to this user."""
    if folder.is_dir():
        about = folder.stat()
        if about.st_mode & 0o077 and about.st_uid == os.geteuid():
            folder.chmod(0o700)
