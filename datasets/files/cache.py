"""What was slow to read is read once: arrays kept in data-dir, as long as their files stay."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
_KEY = "made_of"  # the entry that tells which files and settings the arrays were made of


def cached(
    data_dir: Path, name: str, files: Sequence[Path], settings: str, make: Callable[[], Arrays]
) -> Arrays:
    """`make()`, or what it gave when the same files were last read with the same settings.

    Kept in `<data_dir>/cache/<name>.npz`; where that cannot be written, nothing is kept.

    Parameters
    ----------
    files : what the arrays are made of; a change of name, size or time counts as another file.
    settings : how; a new version of the reader is another setting.
    """
    kept = data_dir / "cache" / f"{name}.npz"
    key = _fingerprint(files, settings)
    with (
        suppress(OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile),
        kept.open("rb") as file,  # np.load by itself leaves a damaged file open
        np.load(file) as found,
    ):
        if str(found[_KEY]) == key:
            return {entry: found[entry] for entry in found.files if entry != _KEY}
    arrays = make()
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        _write(kept, {**arrays, _KEY: np.array(key)})
    return arrays


def _fingerprint(files: Sequence[Path], settings: str) -> str:
    digest = hashlib.sha256(settings.encode())
    for file in files:
        found = file.stat()
        digest.update(
            f"\n{file.parent.name}/{file.name} {found.st_size} {found.st_mtime_ns}".encode()
        )
    return digest.hexdigest()


def _write(path: Path, arrays: Arrays) -> None:
    """All at once: another process may be reading, or writing the same."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
