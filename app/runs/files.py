"""Read untrusted files of run directories: regular files of a bounded size, also once unpacked.

A pipe would block the reader, a device never ends, and a link leads out of the directory.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from coterie.app.runs import units
from coterie.errors import Error
from coterie.ranges import adapter

if TYPE_CHECKING:
    from pydantic import ValidationError

_TEXT = 1 << 26
"""Maximum bytes of a JSON or TOML file."""
_MEMORY_SHARE = 4
"""Divisor of this machine's memory: maximum share that the arrays of a file may take."""
_ARRAYS = 1 << 31
"""Maximum bytes of the arrays in a file."""
_LISTING = 1 << 16
"""Maximum bytes of an archive's directory."""
_END = struct.Struct("<4s4H2LH")
"""End of an archive: mark, four counts, size and offset of its directory, and a comment."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


NEWCOMERS = "newcomers.json"
CLEARANCE = "clearance.json"


@dataclass(frozen=True)
class Newcomers:
    """Content of newcomers.json: peers that joined late, and a control without the method."""

    peers: tuple[int, ...]
    fine_tuned_test_accuracy: tuple[float | None, ...]


class ResultsError(Error, ValueError):
    """A directory is not a run, or one of its files is damaged; the message names the file."""


def opened(directory: Path, name: str, limit: int) -> BinaryIO:
    """Open a regular file of at most `limit` bytes; `name` is its path below `directory`, with "/".

    FileNotFoundError: there is none. ResultsError: it is another kind of file, a link or too large.
    """
    path = directory / name
    for folder in [*path.parents][: name.count("/")]:
        if folder.is_symlink():
            raise ResultsError(f"{folder} is a link; links are not followed")
    flags = ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")  # systems differ in these
    try:
        handle = os.open(path, sum(getattr(os, flag, 0) for flag in flags))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ResultsError(f"{path} is a link; links are not followed") from None
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket
            raise ResultsError(f"{path} is not a regular file") from None
        raise
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise ResultsError(f"{path} is not a regular file")
    if status.st_size > limit:
        os.close(handle)
        raise ResultsError(
            f"{path} has {units.size(status.st_size)}: at most {units.size(limit)} are read"
        )
    return os.fdopen(handle, "rb")


def check_all(directory: Path) -> None:
    """Raise a ResultsError that names the first link, pipe or device of a run directory."""
    for folder, folders, names in os.walk(directory):
        for name in (*folders, *names):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise ResultsError(f"{path} is a link; links are not followed")
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
                raise ResultsError(f"{path} is not a regular file")


def text(directory: Path, name: str) -> str | None:
    """Read a text file; None if there is no such file, ResultsError also if it is not UTF-8."""
    try:
        with opened(directory, name, _TEXT) as file:
            return file.read(_TEXT).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ResultsError(f"{directory / name}: not UTF-8: {error}") from None


def json_of(directory: Path, name: str, kind: Any) -> Any:
    """Read a JSON file as a type, such as a dataclass; None if there is no such file."""
    content = text(directory, name)
    return None if content is None else parsed(content, kind, directory / name)


def parsed(content: str | bytes, kind: Any, path: Path) -> Any:
    """Parse JSON as a type, without further fields; the ResultsError names a wrong field."""
    from pydantic import ValidationError  # loaded when a file is read, not with every command

    try:
        return adapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        raise ResultsError(f"{path}: {first_of(error)}") from None


def first_of(error: ValidationError) -> str:
    """Return the first of pydantic's errors in a line: the field and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def toml_of(directory: Path, name: str) -> dict[str, Any] | None:
    """Read a TOML file; None if there is no such file."""
    content = text(directory, name)
    if content is None:
        return None
    try:
        return tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{directory / name}: not TOML: {error}") from None


def arrays_of(
    directory: Path, name: str, kinds: Mapping[str, str]
) -> dict[str, npt.NDArray[Any]] | None:
    """Read arrays of an .npz file; None if there is no such file.

    Checked before unpacking: `kinds` has the allowed `numpy.dtype.kind` by name.
    """
    path = directory / name
    try:
        with opened(directory, name, _ARRAYS) as file:
            return unpacked(file, kinds)
    except FileNotFoundError:
        return None
    except ResultsError:
        raise
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from None


def unpacked(file: BinaryIO, kinds: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an open .npz file; ValueError if one is missing, too large or wrong."""
    _check_listing(file)
    try:
        with zipfile.ZipFile(file) as archive:
            for key, kind in kinds.items():
                _check_array(archive, key, kind)
            arrays = {}
            for key in kinds:
                with archive.open(f"{key}.npy") as member:
                    arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays
    except KeyError as error:
        raise ValueError(f"no array {error}") from None
    except (OSError, EOFError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"its arrays cannot be read: {error}") from None


def memory() -> int:
    """Return the maximum bytes that arrays of one file may take on this machine."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return _ARRAYS
    return min(_ARRAYS, whole // _MEMORY_SHARE)


def _check_listing(file: BinaryIO) -> None:
    """Refuse an archive of many files, because `zipfile` reads its directory as a whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size))
    end = file.read(_END.size)
    file.seek(0)
    if len(end) < _END.size or not end.startswith(b"PK\5\6"):
        raise ValueError("not an .npz file of NumPy")
    listing = _END.unpack(end)[5]
    if listing > _LISTING:
        raise ValueError("an archive of very many files, not of a few arrays")


def _check_array(archive: zipfile.ZipFile, key: str, kind: str) -> None:
    """Refuse an array by its header: ValueError if it is of another kind, or too large."""
    with archive.open(f"{key}.npy") as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"{key} is written in version {version} of the format")
        shape, _, dtype = _HEADERS[version](member)
    if dtype.kind not in kind:
        raise ValueError(f"{key} holds {dtype}")
    size = dtype.itemsize * math.prod(shape)
    if not 0 <= size <= memory():
        raise ValueError(
            f"{key} is {'x'.join(map(str, shape))}: {units.size(size)}, and at most "
            f"{units.size(memory())} are read"
        )
