"""Cache in data-dir of arrays that are slow to read, valid until their files change."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import of_json, record, recorded
from coterie.datasets.problem import DataError

Arrays = Mapping[str, npt.NDArray[Any]]
_KEY = "made_of"  # entry with a fingerprint of the files and settings


def cached(
    data_dir: Path, name: str, files: Sequence[Path], settings: str, make: Callable[[], Arrays]
) -> Arrays:
    """Return the cached arrays of the same files and settings, or make and cache them.

    The cache is `<data_dir>/cache/<name>.npz`; if it cannot be written, nothing is cached. A change
    of name or content of a file invalidates it. `settings` include the version of the reader.
    """
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
