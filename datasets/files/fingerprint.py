"""SHA-256 of the bytes that a data set is read from, to detect changes, and a cache of its arrays.

Readers open files by `content`, and `record` what else they depend on. Neither size nor time of a
file decides anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from coterie.datasets.problem import DataError

P = ParamSpec("P")
T = TypeVar("T")
_NAMES = "names "
"""Prefix of the digest of a folder's names."""


class Reads(dict[Path, str]):
    """Digest of each file that was read, "" for a missing one, or of a folder's names, by path."""

    def hold(self) -> bool:
        """Return whether everything is still the same."""
        return all(_digest_at(path) == digest for path, digest in self.items())

    def files(self, folder: Path) -> dict[str, str]:
        """Return the digests of the files by name, relative to a folder if they are in it."""
        base = folder.absolute()
        return {
            path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name: digest
            for path, digest in self.items()
            if digest and not digest.startswith(_NAMES)
        }


_reads: ContextVar[Reads | None] = ContextVar("reads", default=None)


@contextmanager
def recorded() -> Iterator[Reads]:
    """Record what is read in this block, also for the block around it."""
    outer, inner = _reads.get(), Reads()
    token = _reads.set(inner)
    try:
        yield inner
    finally:
        _reads.reset(token)
        if outer is not None:
            outer.update(inner)


def content(path: Path, most: int = -1) -> bytes:
    """Read a file, or its first `most` bytes; the digest of these very bytes is recorded."""
    with path.open("rb") as file:
        data = file.read(most)
    if (reads := _reads.get()) is not None:
        reads[path.absolute()] = hashlib.sha256(data).hexdigest()
    return data


def record(path: Path) -> None:
    """Record a file as it is now, that it is missing, or the names below a folder."""
    if (reads := _reads.get()) is not None:
        reads[path.absolute()] = _digest_at(path.absolute())


def exists(path: Path) -> bool:
    """Return whether a file or folder exists, and record it if it does not."""
    is_there = path.exists()
    if not is_there:
        record(path)
    return is_there


def _digest_at(path: Path) -> str:
    try:
        if path.is_dir():
            return _NAMES + of_json(sorted(_names_below(path)))
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _names_below(folder: Path) -> Iterator[str]:
    """Yield all names below a folder, each folder once; links that lead out are not followed."""
    walked, base = set[str](), os.path.realpath(folder)
    for at, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if not Path(real).is_relative_to(base):
            folders.clear()
            continue
        yield from (os.path.join(at, name) for name in (*folders, *files))
        if real in walked:
            folders.clear()
        walked.add(real)


def of_json(value: object) -> str:
    """Return the digest of a value in JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def of_arrays(owner: str, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of arrays in memory by name, as `Reads.files` does of files."""
    digests = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        data = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        head = f"{array.dtype.str} {array.shape} ".encode()
        digests[f"{owner}: {name}"] = hashlib.sha256(head + data).hexdigest()
    return digests


def remembered(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Cache the last `size` results of a loader while everything that it read is the same."""
    # Relative paths among its arguments start from the working directory of the call.

    def decorate(load: Callable[P, T]) -> Callable[P, T]:
        kept: dict[Hashable, tuple[Reads, T]] = {}

        @wraps(load)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            given = (*args, *sorted(kwargs.items()))
            key = tuple(arg.absolute() if isinstance(arg, Path) else arg for arg in given)
            with recorded() as reads:
                known = kept.pop(key, None)
                if known is not None and known[0].hold():
                    reads.update(known[0])
                    result = known[1]
                else:
                    result = load(*args, **kwargs)
            kept[key] = reads, result
            while len(kept) > size:
                del kept[next(iter(kept))]
            return result

        return call

    return decorate


Arrays = Mapping[str, npt.NDArray[Any]]
_KEY = "made_of"  # entry with a fingerprint of the files and settings


def cached(
    data_dir: Path, name: str, files: Sequence[Path], settings: str, make: Callable[[], Arrays]
) -> Arrays:
    """Return the cached arrays of the same files and settings (with a version), or make them."""
    path = data_dir / "cache" / f"{name}.npz"
    with recorded() as reads:
        for file in files:
            record(file)
    key = of_json([settings, reads.files(data_dir)])
    with (
        suppress(OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile),
        path.open("rb") as opened,  # np.load alone leaves a damaged file open
        np.load(opened) as archive,
    ):
        if str(archive[_KEY]) == key:
            return {entry: archive[entry] for entry in archive.files if entry != _KEY}
    arrays = make()
    if not reads.hold():
        raise DataError(f"the files of {name} changed while they were read: run again")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, {**arrays, _KEY: np.array(key)})
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    """Write atomically, since other processes may read or write the same file."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
