"""Folders that a user has filled: finding them, and the images in one folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.datasets.problem import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".dcm")


def folder_with(
    name: str, data_dir: Path, folders: Sequence[str], wanted: Sequence[str], remedy: str
) -> Path:
    """The first of some folders of data-dir in which all of `wanted` is there.

    Raises
    ------
    DataError
        None has it: one line says what is expected where, and how to get it.
    """
    for folder in folders:
        if all((data_dir / folder / entry).exists() for entry in wanted):
            return data_dir / folder
    places = " or ".join(str(data_dir / folder) for folder in folders)
    raise DataError(
        f"dataset {name} is not here: expected {', '.join(wanted)} in {places}; {remedy}"
    )


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder in the order of their names.

    Raises
    ------
    DataError
        The folder is missing or has none.
    """
    found = sorted(p for p in folder.glob("*") if p.suffix.lower() in IMAGES)
    if not found:
        raise DataError(f"{folder}: expected images ({', '.join(IMAGES)}), found none")
    return found


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """A colour image (3, height, width).

    Raises
    ------
    DataError
        It is damaged or no image.
    """
    from PIL import Image  # slow to import

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's for a damaged PNG is SyntaxError
        raise DataError(f"{path}: not an image that can be read ({error})") from None
