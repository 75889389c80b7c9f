"""Pixels of an image file of any format, and its properties, by Pillow, pydicom and nibabel.

The content of a file says what it is, not its suffix. Large values are bright in every file:
MONOCHROME1 of DICOM and WhiteIsZero of TIFF are inverted within the range of their bits.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.folders import MAX_BYTES
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    from PIL import Image
    from pydicom import Dataset

MAX_PIXELS = 1 << 26
"""Maximum number of values of an image: 8192 x 8192."""
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "DIB", "GIF", "WEBP", "JPEG2000", "PPM", "AVIF")
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
"""Pillow's modes with more than 8 bits."""
_COLOUR = ("RGB", "RGBX", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV")
_DICOM = (b"\x02\x00", b"\x08\x00", b"\x00\x08")
"""Start of a DICOM file without preamble: a tag of group 2 or 8, little- or big-endian."""
_DEFLATED, _MAX_RATIO = b"1.2.840.10008.1.2.1.99", 1032
"""Transfer syntax of which pydicom unpacks everything, and the maximum ratio of zlib."""
_CUT = re.compile(r"(L|RGB)\w*;16")
"""Pillow's raw modes of colours with 16 bits each, of which it reads the upper 8."""
_ENOUGH = 512
_SHOWN = 300


class NoImageError(DataError):
    """The file holds no image; the message is the kind of what it holds."""


class BadImageError(DataError):
    """The image cannot be used; the message says why, in one line without names."""


@dataclass(frozen=True)
class Choices:
    """Choices that change numbers, see `coterie.datasets.own.image_folder.ImageFolderOptions`."""

    window: str = "none"
    padding: Literal["nearest", "keep"] = "nearest"
    is_mask: bool = False  # the colours of a palette are numbers of classes


class Decoded(NamedTuple):
    """Image of a file."""

    values: npt.NDArray[Any]  # (H, W), (H, W, 3) or a volume (X, Y, Z); uint8, or float32
    limits: tuple[float, float] | None  # smallest and largest value that its bits can hold
    properties: dict[str, str]  # for comparison with other images
    patient: str = ""  # DICOM's PatientID: must never be written


def decode(data: bytes, choices: Choices) -> Decoded:
    """Decode an image; NoImageError: the file holds none, BadImageError: it cannot be used."""
    for name in ("PIL", "pydicom", "nibabel.global"):  # they log values of the file
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decoder = _decoder(data)
        try:
            image = decoder(data, choices)
        except (NoImageError, BadImageError):
            raise
        except Exception as error:  # decoders raise anything for damaged files
            if decoder is _dicom and data[128:132] != b"DICM":
                raise NoImageError("no image") from None
            raise BadImageError(f"cannot be read ({_line(error)})") from None
    if not np.isfinite(image.values).all():
        count = int((~np.isfinite(image.values)).sum())
        raise BadImageError(f"has NaN or infinity in {count} of {image.values.size} pixels")
    return image


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__


def _decoder(data: bytes) -> Callable[[bytes, Choices], Decoded]:
    start = data[:_ENOUGH]
    if start[128:132] == b"DICM":
        return _dicom
    if start[:2] == b"\x1f\x8b":
        with suppress(zlib.error):
            unpacked = zlib.decompressobj(31).decompress(data[: 1 << 16], _ENOUGH)
            start = unpacked if _is_volume(unpacked) else start
    if _is_volume(start):
        return _volume
    if start[:2] in _DICOM and len(data) > 132:
        return _dicom
    return _picture


def _is_volume(start: bytes) -> bool:
    return start[344:348] in (b"n+1\0", b"ni1\0") or start[4:8] == b"n+2\0"


def _check_size(*sides: int) -> None:
    if not 0 < math.prod(map(int, sides)) <= MAX_PIXELS:
        raise BadImageError(f"states {'x'.join(map(str, sides))} values, not 1 to {MAX_PIXELS:,}")


def _range(bits: int, is_signed: bool = False) -> tuple[float, float]:
    low = -(2.0 ** (bits - 1)) if is_signed else 0.0
    return low, low + 2.0**bits - 1


def _one_frame(frames: int) -> None:
    if frames > 1:
        raise BadImageError(
            f"has {frames} frames or pages, an example is one image: save the ones to use as files "
            "of their own"
        )


def _picture(data: bytes, choices: Choices) -> Decoded:
    from PIL import Image, ImageOps, UnidentifiedImageError  # slow to import

    try:
        opened = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        raise NoImageError("no image") from None
    with opened as image:
        _check_size(image.height, image.width, len(image.getbands()))
        if image.format != "MPO":  # whose further images are previews of the first
            _one_frame(getattr(image, "n_frames", 1))
        tags = getattr(image, "tag_v2", {})
        args = image.tile[0][3] if image.tile else ""
        raw_mode = str(args if isinstance(args, str) else (args or ("",))[0])
        properties = {
            "format": "JPEG" if image.format == "MPO" else str(image.format),
            "pixels": "WhiteIsZero" if tags.get(262) == 0 else image.mode,
            "depth": "8 bits",
            "maker": _text(image.getexif().get(271)),
        }
        turned = ImageOps.exif_transpose(image)
        if image.mode in _DEEP:
            properties["depth"], limits, values = _deep(turned, tags)
            return Decoded(values, limits, properties)
        if _CUT.match(raw_mode):
            properties["pixels"] += " cut from 16 to 8 bits"
        is_numbers = choices.is_mask and turned.mode == "P"
        values = np.asarray(turned if is_numbers else _flat(turned))
        return Decoded(values, (0.0, 255.0), properties)


def _deep(
    image: Image.Image, tags: Any
) -> tuple[str, tuple[float, float] | None, npt.NDArray[np.float32]]:
    """Return depth, limits and values of an image of more than 8 bits."""
    stored = np.asarray(image)
    if image.mode == "F":
        if tags.get(262) == 0:
            raise BadImageError("is WhiteIsZero with floating-point values, which have no white")
        return "floating-point", None, stored
    if (marked := image.info.get("transparency")) is not None and (stored == marked).any():
        raise BadImageError("has transparent pixels: save it without transparency")
    bits = int(np.max(tags.get(258, 16)))
    is_signed = bool(np.max(tags.get(339, 1)) == 2)
    if bits == 32 and not is_signed:
        stored = stored.view(np.uint32)
    low, high = _range(bits, is_signed)
    values = low + high - stored if tags.get(262) == 0 else stored
    return f"{bits} bits", (low, high), values.astype(np.float32)


def _flat(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits as grey or RGB, without transparency."""
    if image.has_transparency_data and image.convert("RGBA").getchannel(3).getextrema()[0] != 255:
        raise BadImageError("has transparent pixels: save it without transparency")
    if image.mode in ("1", "L", "LA"):
        return image.convert("L")
    if image.mode not in _COLOUR:
        raise BadImageError(f"has mode {image.mode}, neither grey nor RGB")
    return image.convert("RGB")


def _volume(data: bytes, _: Choices) -> Decoded:
    import nibabel  # slow to import

    if data[:2] == b"\x1f\x8b":
        unpack = zlib.decompressobj(31)
        data = unpack.decompress(data, MAX_BYTES)
        if not unpack.eof:
            raise BadImageError("is cut off, or unpacks to more than 1 GB")
    kind = nibabel.Nifti2Image if data[4:8] == b"n+2\0" else nibabel.Nifti1Image
    volume: Any = kind.from_bytes(data)
    _check_size(*volume.shape)
    if len(volume.shape) < 3 or volume.shape[3:] != (1,) * (len(volume.shape) - 3):
        raise BadImageError(f"is {'x'.join(map(str, volume.shape))}, not one volume")
    stored = "".join(nibabel.aff2axcodes(volume.affine))  # type: ignore[no-untyped-call]
    volume = nibabel.as_closest_canonical(volume)  # type: ignore[no-untyped-call]
    values = np.asarray(volume.dataobj, dtype=np.float32).reshape(volume.shape[:3])
    spacing = "x".join(f"{side:.2g}" for side in volume.header.get_zooms()[:3])
    properties = {"format": "NIfTI", "orientation": stored, "spacing": f"{spacing} mm"}
    return Decoded(values, None, {**properties, "depth": str(volume.get_data_dtype())})


def _dicom(data: bytes, choices: Choices) -> Decoded:
    try:
        import pydicom
        from pydicom.pixels.processing import apply_color_lut
    except ModuleNotFoundError:
        raise BadImageError("cannot be read (DICOM needs pydicom: pip install pydicom)") from None
    if _DEFLATED in data[:_ENOUGH] and len(data) * _MAX_RATIO > MAX_BYTES:
        raise BadImageError("is a deflated file of more than 1 MB: save it without deflation")
    scan = pydicom.dcmread(io.BytesIO(data), force=True)
    if not any(f"{kind}PixelData" in scan for kind in ("", "Float", "DoubleFloat")):
        if "Rows" in scan:
            raise BadImageError("cannot be read (it has a header of an image, but no pixels)")
        is_dicom = data[128:132] == b"DICM" or "SOPClassUID" in scan
        raise NoImageError("DICOM without pixels" if is_dicom else "no image")
    _check_size(scan.Rows, scan.Columns, scan.SamplesPerPixel)
    _one_frame(int(scan.get("NumberOfFrames") or 1))
    stored, meaning = _stored(scan), str(scan.PhotometricInterpretation)
    bits = int(scan.get("BitsStored") or 32)
    properties = {"format": "DICOM", "pixels": meaning}
    for name, read in _PROPERTIES.items():
        with suppress(Exception):  # an image can be used without
            properties[name] = read(scan)
    depth, limits = "", None
    if meaning == "PALETTE COLOR":
        values = apply_color_lut(stored, scan)
        bits = 8 * values.dtype.itemsize
    elif meaning.startswith("MONOCHROME") and stored.ndim == 2:
        values, depth, limits = _grey(scan, stored, bits, choices)
    elif meaning == "RGB" or meaning.startswith("YBR"):  # pydicom converts YBR
        values = stored
    else:
        raise BadImageError(f"has the photometric interpretation {meaning}, neither grey nor RGB")
    if values.dtype != np.uint8:
        values = values.astype(np.float32)
    if values.ndim == 3:
        depth, limits = f"{bits} bits", _range(bits)
    try:
        patient = f"{scan.get('PatientID') or ''}".strip()
    except Exception:  # whose text may have the value
        raise BadImageError("has a PatientID that cannot be read") from None
    return Decoded(values, limits, {**properties, "depth": depth}, patient)


def _stored(scan: Dataset) -> npt.NDArray[Any]:
    """Return the stored values; the BadImageError names the packages that may decode them."""
    from pydicom import uid
    from pydicom.pixels.decoders.base import get_decoder

    if "TransferSyntaxUID" not in scan.file_meta:
        is_implicit, is_little = scan.original_encoding
        little = uid.ImplicitVRLittleEndian if is_implicit else uid.ExplicitVRLittleEndian
        scan.file_meta.TransferSyntaxUID = little if is_little else uid.ExplicitVRBigEndian
    try:
        return scan.pixel_array
    except Exception as error:
        syntax = uid.UID(scan.file_meta.TransferSyntaxUID)
        others = get_decoder(syntax).missing_dependencies if syntax.is_encapsulated else ()
        if not others:
            raise
        wanted = ", or ".join(each.partition("requires ")[2] for each in others)
        why = f"is compressed as {syntax.name}, which cannot be decoded here"
        raise BadImageError(f"{why}: install {wanted} ({_line(error)[: _ENOUGH // 4]})") from None


def _grey(
    scan: Dataset, stored: npt.NDArray[Any], bits: int, choices: Choices
) -> tuple[npt.NDArray[Any], str, tuple[float, float] | None]:
    """Return values, depth and limits of a grey image in the units of its modality."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    if choices.padding == "nearest":
        stored = _without_padding(scan, stored)
    _complete_rescale(scan)
    values = apply_modality_lut(stored, scan)
    low, high = _range(bits, bool(scan.get("PixelRepresentation")))
    if scan.get("ModalityLUTSequence"):
        bits = int(scan.ModalityLUTSequence[0].LUTDescriptor[2])
        low, high = _range(bits)
    elif "RescaleSlope" in scan:
        slope, intercept = float(scan.RescaleSlope), float(scan.RescaleIntercept)
        low, high = sorted((low * slope + intercept, high * slope + intercept))
    has_unit = scan.get("RescaleType") == "HU" or (
        scan.get("Modality") == "CT" and "RescaleSlope" in scan
    )
    if choices.window == "file":
        if "WindowWidth" not in scan and not scan.get("VOILUTSequence"):
            raise BadImageError("has no window, and image-folder.window is file")
        values, has_unit = apply_voi_lut(values, scan), False
        if scan.get("VOILUTSequence"):
            low, high = _range(int(scan.VOILUTSequence[0].LUTDescriptor[2]))
    elif choices.window != "none":
        centre, width = map(float, choices.window.split("/"))
        low, high = centre - width / 2, centre + width / 2
        values, has_unit = np.clip(values, low, high), False
    if scan.PhotometricInterpretation == "MONOCHROME1":
        values = low + high - values.astype(np.float64)
    if stored.dtype.kind == "f":
        return values, "floating-point", None
    return (values, "HU", None) if has_unit else (values, f"{bits} bits", (low, high))


def _without_padding(scan: Dataset, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Move the pixels outside the scanned area to the nearest value of the others."""
    ends = [scan.get("PixelPaddingValue"), scan.get("PixelPaddingRangeLimit")]
    numbers = [int(end) for end in ends if isinstance(end, int)]
    if scan.get("PixelRepresentation"):
        wrap = 1 << int(scan.BitsAllocated)
        numbers = [number - wrap if number >= wrap // 2 else number for number in numbers]
    if not numbers:
        return stored
    is_image = (stored < min(numbers)) | (stored > max(numbers))
    if is_image.all() or not is_image.any():
        return stored
    return stored.clip(stored[is_image].min(), stored[is_image].max())


def _complete_rescale(scan: Dataset) -> None:
    """Take slope and intercept from where they are, and 1 and 0 where one is absent or empty."""
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for group in scan.get(name) or ():
            for item in group.get("PixelValueTransformationSequence") or ():
                scan.RescaleSlope, scan.RescaleIntercept = item.RescaleSlope, item.RescaleIntercept
    if "RescaleSlope" not in scan and "RescaleIntercept" not in scan:
        return
    for name, default in (("RescaleSlope", 1), ("RescaleIntercept", 0)):
        if scan.get(name) is None:
            setattr(scan, name, default)
    slope, intercept = float(scan.RescaleSlope), float(scan.RescaleIntercept)
    if not np.isfinite([slope, intercept]).all() or not slope:
        raise BadImageError("has a RescaleSlope or RescaleIntercept that scales nothing")


def _directions(scan: Dataset) -> str:
    """Return the directions of rows and columns, such as left and posterior."""
    cosines = [float(each) for each in scan.get("ImageOrientationPatient") or ()]
    if len(cosines) != 6:
        return _text("\\".join(map(str, scan.get("PatientOrientation") or ())))
    largest = (max(axis, key=abs) for axis in (cosines[:3], cosines[3:]))
    places = zip(largest, (cosines[:3], cosines[3:]), strict=True)
    return "\\".join(("RAF", "LPH")[value > 0][axis.index(value)] for value, axis in places)


def _spacing(scan: Dataset) -> str:
    sides = scan.get("PixelSpacing") or scan.get("ImagerPixelSpacing")
    return "x".join(f"{float(side):.2g}" for side in sides) + " mm" if sides else ""


_PROPERTIES: dict[str, Callable[[Dataset], str]] = {
    "modality": lambda scan: _text(scan.get("Modality")),
    "maker": lambda scan: _text(scan.get("Manufacturer")),
    "orientation": _directions,
    "spacing": _spacing,
}


def _text(value: object) -> str:
    """Return a short text of a header in one line."""
    return re.sub(r"[^\w .,()\\/+-]+", " ", str(value or "")).strip()[:40]


def resized(voxels: npt.NDArray[Any], sides: Sequence[int], order: int) -> npt.NDArray[Any]:
    """Resize a volume by nearest neighbours (order 0) or linear interpolation (order 1)."""
    from scipy.ndimage import zoom

    if voxels.dtype == np.bool_:
        voxels = voxels.astype(np.uint8)
    factors = [new / old for new, old in zip(sides, voxels.shape, strict=True)]
    result: npt.NDArray[Any] = zoom(voxels, factors, order=order, mode="nearest", grid_mode=True)
    return result
