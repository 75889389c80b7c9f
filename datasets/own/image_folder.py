"""Images of institutions: one folder per class, named like the class.

    data-dir/train/<class>/*.png    data-dir/test/<class>/*.png    data-dir/validation/<class>/...

or just data-dir/<class>/*.png, of which a share is held out for the test. PNG, JPEG and TIFF, grey
(8 or 16 bits) or colour, and DICOM if pydicom is installed. All have the shape of the run, or are
resized to it.
"""

from __future__ import annotations

import io
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import content
from coterie.datasets.files.folders import IMAGES
from coterie.datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    Holding,
    NormalisedOptions,
    RefusedError,
    make_holding,
    numbers,
    words,
)
from coterie.datasets.problem import DataError
from coterie.ranges import option

if TYPE_CHECKING:
    from PIL import Image

_BANDS = {("1",): 1, ("L",): 1, ("I",): 1, ("F",): 1, ("R", "G", "B"): 3}
_DEEP = ("I", "I;16", "I;16B", "F")
"""Pillow's modes with more than 8 bits."""


@dataclass(frozen=True)
class ImageFolderOptions(NormalisedOptions):
    """Options of the data set "image-folder"."""

    classes: str = option(
        "", 'Names of the classes in the order of the model\'s outputs, "normal, pneumonia".'
    )
    shape: str = option(
        "1x28x28",
        'Channels, height and width of every image, "1x28x28"; 1 channel is grey, 3 are colour.',
    )
    fit: Literal["exact", "resize", "crop"] = option(
        "exact",
        '"exact" rejects images of another size, "resize" scales both sides, "crop" scales the '
        "shorter side and crops the centre.",
    )
    _: KW_ONLY
    mean: str = option(
        "", "Mean of the pixels (0 to 255), a number per channel; empty for each peer's own."
    )
    std: str = option(
        "", "Standard deviation of the pixels, a number per channel; empty for each peer's own."
    )

    def __post_init__(self) -> None:
        sides = self.shape.split("x")
        if len(sides) != 3 or not all(side.isdecimal() and int(side) > 0 for side in sides):
            raise ValueError(
                f'shape must be channels, height and width like "1x28x28", not "{self.shape}"'
            )
        if int(sides[0]) not in (1, 3):
            raise ValueError(f"shape: images have 1 channel (grey) or 3 (colour), not {sides[0]}")
        self.check_normalised(int(sides[0]))

    def check_peers(self, peers: int) -> None:
        """Check that the run names its classes."""
        if len(set(words(self.classes))) != len(words(self.classes)) or not words(self.classes):
            raise ValueError('classes must name each class once, like "normal, pneumonia"')

    @property
    def sides(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = map(int, self.shape.split("x"))
        return channels, height, width


def read_image_folder(
    folder: Path, options: ImageFolderOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's images.

    DataError: there are no images, or a class or an image does not fit the run.
    """
    classes, channels = words(options.classes), options.sides[0]
    mean, std = (
        None if values is None else values.reshape(channels, 1, 1)
        for values in (numbers("mean", options.mean), numbers("std", options.std))
    )
    expected = Expected("image-folder", "classification", len(classes), mean, std, tuple(classes))
    split = (folder / "train").is_dir()
    parts = {
        name: _read_part(folder / name if split else folder, options, classes)
        for name in PARTS
        if name == "train" or (split and (folder / name).is_dir())
    }
    return expected, make_holding(expected, parts, options, seed, peer)


def _read_part(
    folder: Path, options: ImageFolderOptions, classes: list[str]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    folders = sorted(path for path in folder.glob("*") if path.is_dir())
    unknown = [path.name for path in folders if path.name not in classes]
    if unknown:
        raise RefusedError(
            f"image-folder: {len(unknown)} of {len(folders)} folders are not named like the run's "
            f"classes {', '.join(classes)}",
            unknown,
        )
    files = [
        (path, classes.index(class_folder.name))
        for class_folder in folders
        for path in sorted(class_folder.glob("*"))
        if path.suffix.lower() in IMAGES
    ]
    if not files:
        raise DataError(
            f"image-folder: no images in this peer's data-dir, expected folders "
            f"{', '.join(classes)} with {', '.join(IMAGES)}"
        )
    results = [read_pixels(path, options) for path, _ in files]
    bad = [f"{path} {x}" for (path, _), x in zip(files, results, strict=True) if isinstance(x, str)]
    if bad:
        raise RefusedError(
            f"image-folder: {len(bad)} of {len(files)} images are not {options.shape}, the shape "
            "of the run",
            bad,
        )
    images = [x for x in results if not isinstance(x, str)]
    return np.stack(images), np.array([label for _, label in files], dtype=np.int64)


def read_pixels(path: Path, options: ImageFolderOptions) -> npt.NDArray[Any] | str:
    """Read an image as (channels, height, width), or return the reason why it does not fit.

    Images of 8 bits are uint8, others float32.
    """
    from PIL import Image, ImageOps  # slow to import

    channels, height, width = options.sides
    try:
        with _opened(path) as image:
            bands = _BANDS.get(image.getbands())
            if bands is None:
                return f"has mode {image.mode}, neither grey nor RGB"
            if bands != channels or (
                options.fit == "exact" and (image.height, image.width) != (height, width)
            ):
                return f"is {bands}x{image.height}x{image.width}"
            deep = image.mode in _DEEP
            converted = image.convert("F" if deep else "L" if bands == 1 else "RGB")
            if options.fit == "resize":
                converted = converted.resize((width, height), Image.Resampling.BILINEAR)
            elif options.fit == "crop":  # the centre, after the shorter side fits
                converted = ImageOps.fit(converted, (width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow raises SyntaxError for a damaged PNG.
        return f"cannot be read ({error})"
    return pixels[None] if bands == 1 else pixels.transpose(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    """Open an image, or the slice in a DICOM file in the units of the file."""
    from PIL import Image

    if path.suffix.lower() != ".dcm":
        return Image.open(io.BytesIO(content(path)))
    try:
        import pydicom
    except ModuleNotFoundError:
        raise ValueError("DICOM needs pydicom: pip install pydicom") from None
    from pydicom.errors import InvalidDicomError

    try:
        scan = pydicom.dcmread(io.BytesIO(content(path)))
        values = scan.pixel_array
    except (InvalidDicomError, AttributeError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    if values.ndim != 2:
        raise ValueError(f"its shape {'x'.join(map(str, values.shape))} is not that of one slice")
    scale, shift = float(scan.get("RescaleSlope", 1)), float(scan.get("RescaleIntercept", 0))
    return Image.fromarray((values * scale + shift).astype(np.float32))
