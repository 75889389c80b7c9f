"""Append-only files of JSON lines that detect changed, truncated and rolled-back content.

Beside a ledger, a file `.head` has its length in bytes and its SHA-256. The head is written after
the line. A ledger may therefore be ahead of its head (the process was killed between the two), but
never behind it. Text after the last line break (`atomic.append`) counts for nothing: its process
was killed before the action that the line would have counted. Copies of the head in the memory of
each run (`memory.py`) detect that ledger and head were rolled back together.

Ledger and head are read and written under a lock over all processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from coterie.app.runs import atomic
from coterie.errors import Error

T = TypeVar("T")
_REMEDY = "this node spends and answers nothing until a person has restored the file"


class LedgerError(Error, ValueError):
    """A limit of the institution is exceeded, or a ledger was changed; names the limit or file."""


class Head(NamedTuple):
    """Length and digest of a ledger at some time."""

    size: int  # in bytes
    digest: str  # SHA-256 of these bytes, hexadecimal


class Journal:
    """One append-only file; it continues each of the `seen` heads that other files recorded."""

    def __init__(self, path: Path, seen: Sequence[Head] = ()) -> None:
        self.path = path
        self._head_file, self._lock = path.with_suffix(".head"), path.with_suffix(".lock")
        self._seen: Sequence[Head] = tuple(seen)
        self._size, self._hash = 0, hashlib.sha256()  # of the lines read or written so far

    @property
    def head(self) -> Head:
        """Head of the ledger as this process last read or wrote it."""
        return Head(self._size, self._hash.hexdigest())

    @contextmanager
    def locked(self, parse: Callable[[dict[str, Any]], T]) -> Iterator[list[T]]:
        """Lock the ledger over all processes; yield the lines that others have added."""
        # LedgerError: it was changed, or `parse` refuses a line; then no line counts as read.
        with atomic.locked(self._lock):
            yield self._read(parse)

    def add(self, *lines: Mapping[str, Any]) -> None:
        """Append lines and the time, `locked`; they are on disk when this returns."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        content = atomic.append(self.path, *({"time": now, **line} for line in lines))
        longer = self._hash.copy()
        longer.update(content)
        size = self._size + len(content)
        self._write_head(Head(size, longer.hexdigest()))
        self._size, self._hash = size, longer  # last: lines without a head are read again

    def _read(self, parse: Callable[[dict[str, Any]], T]) -> list[T]:
        head = self._read_head()
        size = self.path.stat().st_size if self.path.exists() else 0
        content = atomic.whole_lines(self.path, self._size)
        end = self._size + len(content)
        if size < self._size or (head is not None and head.size < self._size):
            raise LedgerError(f"{self.path} was rolled back: {_REMEDY}")
        hashed, at = self._hash.copy(), 0
        for mark in sorted({*self._seen, *([] if head is None else [head])}):
            hashed.update(content[at : mark.size - self._size])
            at = mark.size - self._size
            if mark.size > end or hashed.hexdigest() != mark.digest:
                raise LedgerError(f"{self.path} was changed, cut or rolled back: {_REMEDY}")
        hashed.update(content[at:])
        try:
            lines = [parse(line) for line in atomic.parsed(content, self.path)]
        except (ArithmeticError, LookupError, TypeError, ValueError):
            raise LedgerError(f"{self.path} has a line that is damaged: {_REMEDY}") from None
        now = Head(end, hashed.hexdigest())
        if head != now and end:
            self._write_head(now)
        self._size, self._hash, self._seen = end, hashed, ()
        return lines

    def _read_head(self) -> Head | None:
        """Read the head; None before the first line, and for a ledger of an older version."""
        try:
            size, digest = json.loads(self._head_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            size, digest = None, None
        if type(size) is not int or size < 0 or not isinstance(digest, str):
            raise LedgerError(f"{self._head_file} is damaged: {_REMEDY}")
        return Head(size, digest)

    def _write_head(self, head: Head) -> None:
        with atomic.replacing(self._head_file) as draft:
            draft.write_text(json.dumps(head), encoding="utf-8")
            atomic.sync(draft)  # no need to sync the folder: an older head is valid, too
