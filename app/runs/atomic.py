"""Atomic file writes, file locks, and append-only logs."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import mmap
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.errors import Error

if TYPE_CHECKING:
    from pandas import DataFrame

_DIGEST = 32
"""Bytes of a SHA-256."""
_BLOCK = 1 << 16
"""Bytes in which the end of a file is searched for a line break."""


class DamagedError(Error, ValueError):
    """A file was changed after it was written; names the file."""


class BusyError(Error, RuntimeError):
    """Another process holds a lock; names its file."""


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield the path of a file that replaces `path` unless an exception is raised.

    The name is unpredictable, so nobody else can have put a link there.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
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


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write text in UTF-8, or bytes, atomically."""
    with replacing(path, durable=durable) as draft, draft.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_checked(path: Path, *, bound: bytes, durable: bool = False) -> Iterator[Path]:
    """Replace a file as `replacing` does, with a digest at its end that covers `bound`."""
    with replacing(path, durable=durable) as draft:
        yield draft
        with (
            draft.open("r+b") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            digest = _digest(content, bound)
            file.seek(0, os.SEEK_END)
            file.write(digest)


def read_checked(path: Path, *, bound: bytes) -> bytes:
    """Read a file of `replacing_checked`; DamagedError if damaged or bound to something else."""
    content = path.read_bytes()
    body = content[:-_DIGEST]
    if content[-_DIGEST:] != _digest(body, bound):
        raise DamagedError(f"{path}: damaged, or of another run")
    return body


def _digest(content: bytes | mmap.mmap, bound: bytes) -> bytes:
    digest = hashlib.sha256(hashlib.sha256(bound).digest())
    digest.update(content)
    return digest.digest()


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock over threads and processes; BusyError if it is held, unless `wait`."""
    import fcntl  # imported here: only deployed nodes lock, and they run on Linux

    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(
                f"{path}: another process holds this lock; do two SuperNodes share the directory?"
            ) from None
        yield
    finally:
        os.close(handle)


def append(path: Path, *lines: Mapping[str, Any], durable: bool = True) -> bytes:
    """Append lines of JSON to a file, all or none, and return them as bytes.

    They replace what a killed process or a full disk left after the last line break. Processes that
    append to the same file need a lock. Only its owner can read a new file.
    """
    texts = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines]
    content = "".join(texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        end = _end_of_lines(file)
        try:
            file.truncate(end)
            file.seek(end)
            written = 0
            while written < len(content):
                written += file.write(content[written:])
            if durable:
                os.fsync(handle)
                if is_new:
                    sync(path.parent)
        except OSError as error:
            file.truncate(end)
            raise OSError(error.errno, error.strerror, str(path)) from None
    return content


def _end_of_lines(file: io.FileIO) -> int:
    """Return the position after the last line break of a file."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if at := file.read(end - start).rfind(b"\n") + 1:
            return start + at
        end = start
    return 0


def whole_lines(path: Path, start: int = 0) -> bytes:
    """Return the lines of `append` from byte `start` on, without an unfinished last one."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    return content[: content.rfind(b"\n") + 1]


def parsed(content: bytes, path: Path) -> list[dict[str, Any]]:
    """Parse the whole lines of a file; DamagedError, with its name, if one is not a JSON object."""
    try:
        records = [json.loads(line) for line in content.split(b"\n")[:-1]]
    except (ValueError, RecursionError):
        records = [None]
    if not all(isinstance(record, dict) for record in records):
        raise DamagedError(f"{path} has a line that is damaged")
    return records


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `append`; raise DamagedError as `parsed` does."""
    return parsed(whole_lines(path), path)


T = TypeVar("T")

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, a line each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def safe(cell: T) -> T | str:
    """Return a text with a "'" in front if a spreadsheet would evaluate it as a formula."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_of(frame: DataFrame) -> str:
    """Return a frame as CSV in full precision, without its index; NaN is empty."""
    texts = frame.select_dtypes(exclude="number").columns
    return str(frame.assign(**{name: frame[name].map(safe) for name in texts}).to_csv(index=False))
