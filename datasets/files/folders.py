"""Folders of data sets in data-dir, and image files in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import exists, record
from coterie.datasets.problem import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".dcm")


def folder_with(
    name: str, data_dir: Path, folders: Sequence[str], entries: Sequence[str], remedy: str
) -> Path:
    """Return the first of some folders of data-dir that has all `entries`.

    DataError: none has them; the message names the expected files and how to get them.
    """
    for folder in folders:
        if all(exists(data_dir / folder / entry) for entry in entries):
            return data_dir / folder
    places = " or ".join(str(data_dir / folder) for folder in folders)
    raise DataError(
        f"dataset {name} is missing: expected {', '.join(entries)} in {places}; {remedy}"
    )


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
