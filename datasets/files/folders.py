"""Folders of data sets in data-dir, and image files in them."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import content, exists, record
from coterie.datasets.problem import DataError

IMAGES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".dcm", ".bmp", ".gif", ".webp", ".jp2", ".nii"),
    *(".pgm", ".ppm"),
)
MAX_BYTES = 1 << 30
"""Maximum size of an image file."""
_SYSTEM = (".ds_store", "thumbs.db", "desktop.ini", "dicomdir", "__macosx")


def folder_with(
    name: str, data_dir: Path, folders: Sequence[str], entries: Sequence[str], remedy: str
) -> Path:
    """Return the first folder of data-dir with all `entries`; DataError: none, with `remedy`."""
    for folder in folders:
        if all(exists(data_dir / folder / entry) for entry in entries):
            return data_dir / folder
    places = " or ".join(str(data_dir / folder) for folder in folders)
    raise DataError(
        f"dataset {name} is missing: expected {', '.join(entries)} in {places}; {remedy}"
    )


def files_below(folder: Path, base: Path, *, deep: bool = True) -> tuple[list[Path], Counter[str]]:
    """Return the regular files below a folder, sorted, and count the others by their kind.

    Hidden files and those of an operating system count as left out. DataError: a symbolic link
    leads out of `base` or nowhere, or a folder cannot be read.
    """
    files, left_out, outside = [], Counter[str](), 0
    inside = base.resolve()
    for place, folders, names in os.walk(folder, onerror=_refuse):
        links = [name for name in folders if deep and (Path(place) / name).is_symlink()]
        for path in (Path(place) / name for name in (*names, *links)):
            try:
                mode, target = path.stat().st_mode, path.resolve(strict=True)
            except (OSError, RuntimeError):  # RuntimeError: a loop of links
                outside += 1
                continue
            hidden = [part for part in path.relative_to(base).parts if is_hidden(part)]
            if not target.is_relative_to(inside):
                outside += 1
            elif hidden:
                is_system = hidden[0].casefold() in _SYSTEM
                left_out[hidden[0] if is_system else "hidden"] += 1
            elif stat.S_ISREG(mode):
                files.append(path)
            else:
                left_out["link to a folder" if stat.S_ISDIR(mode) else "no regular file"] += 1
        if not deep:
            break
    if outside:
        raise DataError(
            f"{outside} symbolic links lead out of this peer's data-dir, or nowhere: copy the files"
        )
    return sorted(files), left_out


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise DataError(f"a folder of this peer's data-dir cannot be read ({error.strerror})")


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden, or an operating system's."""
    return name.startswith(".") or name.casefold() in _SYSTEM


def read_bytes(path: Path) -> bytes:
    """Read a file of at most `MAX_BYTES`; OSError if it is larger or cannot be read."""
    data = content(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"larger than {MAX_BYTES / 1e9:.1f} GB")
    return data


def unpacked(path: Path) -> bytes:
    """Read a file, plain or .gz; DataError if it is damaged."""
    raw = content(path)
    try:
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); get it again") from None


def images_in(folder: Path) -> list[Path]:
    """Return the image files of a folder, sorted by name; DataError if there are none."""
    record(folder)
    images = sorted(path for path in folder.glob("*") if path.suffix.lower() in IMAGES)
    if not images:
        raise DataError(f"{folder}: no images, expected {', '.join(IMAGES)}")
    return images


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Read a colour image, (3, height, width); DataError if the file is damaged or not an image."""
    from PIL import Image  # slow to import

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: Pillow, for a damaged PNG
        raise DataError(f"{path}: not a readable image ({error})") from None
