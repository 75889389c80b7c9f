"""Permission checks and restrictions for files and folders of one owner."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def writable_by_others(path: Path) -> str:
    """Return how others could change a file, with the remedy; "" if they cannot (as in OpenSSH)."""
    places = [path.absolute()]
    for place in places:  # grows
        about = place.lstat()
        if sys.platform != "win32" and about.st_uid not in (0, os.geteuid()):
            return (
                f"user {about.st_uid} owns {place} and could change it: let root or this user, "
                f"{os.geteuid()}, own it (chown), or run this as its owner"
            )
        is_folder = stat.S_ISDIR(about.st_mode)
        sticky = is_folder and about.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(about.st_mode):
            target = place.parent / place.readlink()
            places += [each for each in (target, *target.parents) if each not in places]
        elif about.st_mode & _WRITABLE and not sticky:
            to = f"the folder {place}" if is_folder else "it"
            return f"others may write to {to}: chmod go-w {place}"
        places += [each for each in place.parents if each not in places]
    return ""


@contextmanager
def closed(mask: int = 0o077) -> Iterator[None]:
    """Create files and folders that only their owner can access (0o022: others can read them)."""
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
