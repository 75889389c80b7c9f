"""Images of more than 8 bits, from PNG and DICOM, and errors by file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from coterie.datasets.own.image_folder import ImageFolderOptions
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError
from coterie.datasets.table import DATASETS

OPTIONS = ImageFolderOptions("normal, ill", "1x4x5", mean="0", std="1")
Pixels = npt.NDArray[np.uint16]
Writer = Callable[..., None]


def write_png(path: Path, pixels: Pixels) -> None:
    Image.fromarray(pixels).save(path)


def write_dicom(path: Path, pixels: Pixels, **more: Any) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = CTImageStorage, generate_uid()
    scan.Rows, scan.Columns = pixels.shape[-2:]
    scan.SamplesPerPixel, scan.PhotometricInterpretation = 1, "MONOCHROME2"
    scan.BitsAllocated, scan.BitsStored, scan.HighBit, scan.PixelRepresentation = 16, 16, 15, 0
    scan.PixelData = pixels.tobytes()
    for name, value in more.items():
        setattr(scan, name, value)
    scan.save_as(path, enforce_file_format=True)


def write_hospital(folder: Path, write: Writer, suffix: str) -> Pixels:
    """Write four training images and one test image per class; return those of `ill`."""
    for of_class in ("train/normal", "train/ill", "test/ill"):
        (folder / of_class).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(1 << 16, size=(8, 4, 5), dtype=np.uint16)
    for number, image in enumerate(pixels):
        write(folder / "train" / ("normal", "ill")[number // 4] / f"{number}{suffix}", image)
    write(folder / "test" / "ill" / f"0{suffix}", pixels[0])
    return pixels[4:]


def read(folder: Path) -> npt.NDArray[Any]:
    """Read the training images of class `ill` of one simulated peer."""
    problem = DATASETS["image-folder"].load(Partition(), 1, 0, folder, OPTIONS)
    assert problem.train.targets[0].tolist() == [1] * 4 + [0] * 4
    result: npt.NDArray[Any] = problem.inputs[problem.train.rows[0][:4], 0]
    return result


@pytest.mark.parametrize(("write", "suffix"), [(write_png, ".png"), (write_dicom, ".dcm")])
def test_all_sixteen_bits_are_read(tmp_path: Path, write: Writer, suffix: str) -> None:
    expected = write_hospital(tmp_path / "a", write, suffix)
    np.testing.assert_array_equal(read(tmp_path), expected.astype(np.float32))


def test_a_scan_is_in_the_units_of_its_file(tmp_path: Path) -> None:
    def write(path: Path, pixels: Pixels) -> None:
        write_dicom(path, pixels, RescaleSlope=0.5, RescaleIntercept=-1024)

    expected = write_hospital(tmp_path / "a", write, ".dcm")
    np.testing.assert_array_equal(read(tmp_path), expected * 0.5 - 1024.0)


def two_frames(path: Path) -> None:
    write_dicom(path, np.zeros((2, 4, 5), dtype=np.uint16), NumberOfFrames=2)


def no_dicom(path: Path) -> None:
    path.write_bytes(b"no scan at all")


def cut(path: Path) -> None:
    write_dicom(path, np.zeros((4, 5), dtype=np.uint16))
    path.write_bytes(path.read_bytes()[:-20])


def of_another_size(path: Path) -> None:
    write_dicom(path, np.zeros((6, 7), dtype=np.uint16))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (two_frames, "has 2 frames or pages"),
        (no_dicom, "cannot be read: it is damaged, or no image in spite"),
        (cut, "cannot be read .The number of bytes of pixel data is less than expected"),
        (of_another_size, "is 1x6x7"),
    ],
)
def test_a_bad_scan_is_named(tmp_path: Path, spoil: Callable[[Path], None], why: str) -> None:
    write_hospital(tmp_path / "a", write_dicom, ".dcm")
    spoil(tmp_path / "a" / "train" / "ill" / "bad.dcm")
    with pytest.raises(DataError, match=f"1 of 9 images .*train/ill/bad.dcm {why}"):
        read(tmp_path)


def test_what_dicom_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hospital(tmp_path / "a", write_dicom, ".dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"4.dcm cannot be read .DICOM needs pydicom: pip install"):
        read(tmp_path)
