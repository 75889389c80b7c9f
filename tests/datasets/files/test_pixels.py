"""Pixels equal those of the libraries that know them, or the reason is stated."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from coterie.datasets.files.pixels import BadImageError, Choices, Decoded, NoImageError, decode

G = np.random.default_rng(0)
COLOUR = G.integers(256, size=(6, 9, 3), dtype=np.uint8)
DEEP = G.integers(1 << 16, size=(6, 9), dtype=np.uint16)
MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr")
FORMATS = ("PNG", "TIFF", "JPEG", "BMP", "GIF", "WEBP", "JPEG2000", "PPM")


def of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(data: bytes, **choices: Any) -> npt.NDArray[Any]:
    return decode(data, Choices(**choices)).values


def tiff(values: npt.NDArray[Any], white_is_zero: bool, kind: int = 1) -> bytes:
    """Write a TIFF of one strip; `kind` is the sample format: unsigned, signed, floating-point."""
    (h, w), data = values.shape, values.tobytes()
    bits, is_black = 8 * values.dtype.itemsize, not white_is_zero
    tags = [
        *((256, 4, w), (257, 4, h), (258, 3, bits), (259, 3, 1), (262, 3, is_black), (273, 4, 8)),
        *((277, 3, 1), (278, 4, h), (279, 4, len(data)), (339, 3, kind)),
    ]
    entries = (struct.pack("<HHII", tag, form, 1, value) for tag, form, value in tags)
    directory = struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + directory


@pytest.mark.parametrize("kind", FORMATS)
def test_every_mode_is_what_pillow_converts(kind: str) -> None:
    for mode in MODES:
        try:
            data = of(Image.fromarray(COLOUR).convert(mode), kind)
        except (OSError, ValueError):
            continue  # the format has no such mode
        with Image.open(io.BytesIO(data)) as image:
            expected = image.convert("L" if image.mode in ("1", "L") else "RGB")
        np.testing.assert_array_equal(plain(data), np.asarray(expected))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_images_stand_upright(kind: str) -> None:
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = turn
        data = of(Image.fromarray(COLOUR), kind, exif=exif)
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(plain(data), expected)
    exif = Image.Exif()
    exif[0x112] = 6  # turned to the right
    turned = plain(of(Image.fromarray(DEEP), "PNG", exif=exif))
    np.testing.assert_array_equal(turned, np.rot90(DEEP, -1))


def test_large_values_are_bright_in_every_tiff() -> None:
    np.testing.assert_array_equal(plain(tiff(DEEP, False)), DEEP)
    np.testing.assert_array_equal(plain(tiff(DEEP, True)), 65535 - DEEP)
    np.testing.assert_array_equal(plain(tiff(COLOUR[..., 0], True)), 255 - COLOUR[..., 0])
    np.testing.assert_array_equal(plain(tiff(DEEP.view(np.int16), False, 2)), DEEP.view(np.int16))
    wide = np.array([[0, 2**31, 2**32 - 256]], dtype=np.uint32)
    np.testing.assert_array_equal(plain(tiff(wide, False)), wide)
    with pytest.raises(BadImageError, match="no white"):
        plain(tiff(DEEP.astype(np.float32), True, 3))


def test_transparency_is_refused_unless_all_pixels_are_opaque() -> None:
    image = Image.fromarray(COLOUR).convert("RGBA")
    np.testing.assert_array_equal(plain(of(image, "PNG")), COLOUR)
    image.putpixel((0, 0), (1, 2, 3, 254))
    of_value = of(Image.fromarray(DEEP), "PNG", transparency=int(DEEP[2, 3]))
    for data in (of(image, "PNG"), of_value):
        with pytest.raises(BadImageError, match="transparent pixels"):
            plain(data)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b""))


def volume() -> bytes:
    import nibabel

    make: Any = nibabel.Nifti1Image
    image = make(DEEP.reshape(6, 3, 3).astype(np.float32), np.diag([-1, 1, 2, 1]))
    data: bytes = image.to_bytes()
    return data


MORE = [Image.fromarray(255 - COLOUR)]
BAD = {
    "100000 x 100000 pixels": png(10**5, 10**5),
    "states 9000x9000x1 values": png(9000, 9000),
    "cannot be read": of(Image.fromarray(COLOUR), "PNG")[:90],
    "has NaN or infinity in 54 of 54": tiff(np.full((6, 9), np.nan, np.float32), False, 3),
    "is cut off": gzip.compress(volume())[:-9],
    "has 2 frames": of(Image.fromarray(COLOUR), "GIF", save_all=True, append_images=MORE),
    "states 30000x30000x30000": volume()[:42] + struct.pack("<3h", *[30000] * 3) + volume()[48:],
}  # fmt: skip
NONE = {
    "text": "größe\n".encode(), "empty": b"", "archive": gzip.compress(bytes(10**6)),
    "unknown": bytes(range(128, 256)) * 9, "start of DICOM": b"\x08\0" + bytes(400),
    "a kind of TIFF that Pillow does not read": tiff(DEEP.view(np.int16), True, 2),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_hostile_and_broken_images_are_one_line(why: str) -> None:
    match = why if why != "100000 x 100000 pixels" else "exceeds limit"
    with pytest.raises(BadImageError, match=match) as error:
        decode(BAD[why], Choices())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", NONE)
def test_other_files_are_no_images(kind: str) -> None:
    with pytest.raises(NoImageError, match="no image"):
        decode(NONE[kind], Choices())


def test_volumes_have_one_orientation() -> None:
    """The first axis of the file points to the left (-1), so it is reversed."""
    for data in (volume(), gzip.compress(volume())):
        image = decode(data, Choices())
        np.testing.assert_array_equal(image.values, DEEP.reshape(6, 3, 3)[::-1])
        assert image.properties["orientation"] == "LAS"
        assert image.properties["spacing"] == "1x1x2 mm"


def scan(**tags: Any) -> Any:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.data import get_testdata_file

    image = pydicom.dcmread(str(get_testdata_file("CT_small.dcm")))
    for name, value in tags.items():
        setattr(image, name, value)
    return image


def saved(image: Any) -> bytes:
    file = io.BytesIO()
    image.save_as(file)
    return file.getvalue()


@pytest.mark.slow
def test_pydicoms_own_files_are_what_pydicom_returns_or_refused() -> None:
    """Also the table of the page: how many of the files of pydicom have which outcome."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut

    outcomes: Counter[str] = Counter()
    for path in sorted((Path(pydicom.__file__).parent / "data" / "test_files").rglob("*")):
        if not path.is_file():
            continue
        try:
            image: Decoded = decode(path.read_bytes(), Choices(padding="keep"))
        except NoImageError:
            outcomes["no image"] += 1
            continue
        except BadImageError as error:
            reasons = {
                "install ": "no decoder", " frames or pages": "several frames",
                "cannot be read": "damaged",
            }  # fmt: skip
            outcomes[next(kind for text, kind in reasons.items() if text in str(error))] += 1
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = pydicom.dcmread(path, force=True)
            if "TransferSyntaxUID" not in source.file_meta:
                is_implicit = source.original_encoding[0]
                source.file_meta.TransferSyntaxUID = pydicom.uid.UID(
                    "1.2.840.10008.1.2" if is_implicit else "1.2.840.10008.1.2.1"
                )
            values = source.pixel_array
            if source.PhotometricInterpretation == "PALETTE COLOR":
                values = apply_color_lut(values, source)
            elif values.ndim == 2:
                values = apply_modality_lut(values, source)
        expected = values.astype(np.float32)
        if source.PhotometricInterpretation == "MONOCHROME1":
            slope, intercept = source.get("RescaleSlope", 1), source.get("RescaleIntercept", 0)
            ends = slope * (2.0**source.BitsStored - 1) + 2 * intercept
            expected = (ends - values.astype(np.float64)).astype(np.float32)
        np.testing.assert_array_equal(image.values, expected, path.name)
        outcomes["equal"] += 1
    assert outcomes["equal"] >= 74, "the others need decoders that are not installed"
    assert outcomes["equal"] + outcomes["no decoder"] + outcomes["damaged"] == 88
    assert (outcomes["several frames"], outcomes["no image"]) == (7, 81)


def test_monochrome1_is_the_same_picture() -> None:
    """PS3.3 C.7.6.3.1.2: of MONOCHROME1, the smallest value is white."""
    normal = scan(RescaleSlope=1, RescaleIntercept=0)
    inverted = scan(
        PhotometricInterpretation="MONOCHROME1", RescaleSlope=1, RescaleIntercept=0,
        PixelData=(-1 - normal.pixel_array).tobytes(),  # within int16
    )  # fmt: skip
    np.testing.assert_array_equal(plain(saved(normal)), plain(saved(inverted)))


@pytest.mark.parametrize("tags", [{"RescaleSlope": None}, {"RescaleIntercept": None}])
def test_an_empty_rescale_is_one_or_zero(tags: dict[str, Any]) -> None:
    values = scan().pixel_array.astype(np.float64)
    expected = values * 1 + (0 if "RescaleIntercept" in tags else -1024)
    np.testing.assert_array_equal(plain(saved(scan(**tags))), expected)


def test_padding_takes_the_nearest_value_of_the_image() -> None:
    values = scan().pixel_array.copy()
    lowest = int(values.min())
    values[:5] = -2000
    padded = saved(scan(PixelPaddingValue=-2000, PixelData=values.tobytes()))
    assert plain(padded)[:5].max() == lowest - 1024
    assert plain(padded, padding="keep")[:5].max() == -2000 - 1024
    np.testing.assert_array_equal(plain(padded)[5:], plain(padded, padding="keep")[5:])


def test_windows_are_applied_only_on_demand() -> None:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    image = scan(WindowCenter=40, WindowWidth=400)
    units = apply_modality_lut(image.pixel_array, image)
    np.testing.assert_array_equal(plain(saved(image)), units)
    np.testing.assert_array_equal(plain(saved(image), window="40/400"), units.clip(-160, 240))
    expected = apply_voi_lut(units, image).astype(np.float32)
    np.testing.assert_array_equal(plain(saved(image), window="file"), expected)
    with pytest.raises(BadImageError, match="has no window"):
        plain(saved(scan()), window="file")


def test_headers_of_scans_are_checked_before_their_pixels() -> None:
    for tags, why in (
        ({"Rows": 65535, "Columns": 65535}, "states 65535x65535x1"),
        ({"NumberOfFrames": 10**6}, "has 1000000 frames"),
        ({"RescaleSlope": 0}, "scales nothing"),
        ({"PhotometricInterpretation": "CMYK"}, "neither grey nor RGB"),
    ):
        with pytest.raises(BadImageError, match=why):
            plain(saved(scan(**tags)))
