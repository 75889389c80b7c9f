"""Every file of a folder of images is read, counted or refused; patients stay together."""

from __future__ import annotations

import json
import logging
import os
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.app.cli.main import main
from coterie.datasets.account import Account, lines
from coterie.datasets.own.image_folder import ImageFolderOptions, read_pixels
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Floats, Problem
from coterie.datasets.table import DATASETS
from tests.inline import run

G = np.random.default_rng(0)
NAMES = "normal, größe"


def options(**more: Any) -> ImageFolderOptions:
    return ImageFolderOptions(**{"classes": NAMES, "shape": "1x4x5", **more})


def load(folder: Path, peers: int = 1, seed: int = 0, **more: Any) -> Problem:
    return DATASETS["image-folder"].load(Partition(), peers, seed, folder, options(**more))


def picture(path: Path, kind: str = "PNG", deep: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = G.integers(256, size=(4, 5), dtype=np.uint8)
    Image.fromarray(pixels * np.uint16(257) if deep else pixels).save(path, kind)


def clinic(folder: Path, count: int = 10) -> None:
    for name in NAMES.split(", "):
        for k in range(count):
            picture(folder / name / f"{k}.png")


def account(problem: Problem) -> Account:
    (result,) = problem.accounts
    assert result is not None
    return result


def test_the_content_says_what_a_file_is_at_any_depth(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "normal"
    picture(folder / "IM00001")
    picture(folder / "patient 1" / "study" / "2.DAT", "BMP")
    picture(folder / "patient 2" / "3.jpg", "PNG")
    picture(folder / "patient 2" / "4.TIF", "TIFF")
    picture(folder / "patient 2" / "1.2.840.10008.4711", "GIF")
    (folder / "notes.csv").write_text("a,b\n")
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "patient 1" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    picture(tmp_path / "a" / "__MACOSX" / "._1.png")
    picture(folder / ".hidden.png")
    (folder / "old.zip").write_bytes(b"PK\3\4" + bytes(30))
    os.mkfifo(folder / "pipe")
    (tmp_path / "a" / "README").write_text("of the ward")
    problem = load(tmp_path)
    assert sum(problem.sizes(0).values()) == 5
    read = account(problem)
    assert (read.files, sum(read.left_out.values())) == (13, 8)
    assert set(read.left_out) == {
        "no image (.csv)", ".DS_Store", "Thumbs.db", "__MACOSX", "hidden", "no image (.zip)",
        "no regular file", "beside the folders (no suffix)",
    }  # fmt: skip
    assert read.properties["format"] == {"PNG": 2, "BMP": 1, "TIFF": 1, "GIF": 1}
    assert "13 files, 5 read" in lines({"a": read})[0]
    assert "the images differ in format: a 2 PNG" in "\n".join(lines({"a": read}))
    assert Account.of_json(problem.describe()[0]["account"]) == read
    assert "4711" not in str(problem.describe())


@pytest.mark.parametrize(
    ("name", "meant"),
    [("val", "validation"), ("Valid", "validation"), ("testing", "test"), ("TEST", "test")],
)
def test_parts_of_another_name_are_asked_about(tmp_path: Path, name: str, meant: str) -> None:
    clinic(tmp_path / "a" / "train")
    clinic(tmp_path / "a" / name)
    with pytest.raises(DataError, match=rf'{name} \(did you mean "{meant}"'):
        load(tmp_path)


def test_classes_are_equal_in_either_unicode_form_but_not_in_another_case(tmp_path: Path) -> None:
    clinic(tmp_path / "a")
    composed = tmp_path / "a" / "größe"
    composed.rename(composed.with_name(unicodedata.normalize("NFD", "größe")))
    assert sum(load(tmp_path).sizes(0).values()) == 20
    (tmp_path / "a" / "normal").rename(tmp_path / "a" / "Normal")
    with pytest.raises(DataError, match=r'Normal \(did you mean "normal"'):
        load(tmp_path, seed=1)


def link_out(folder: Path) -> None:
    (folder / "out.png").symlink_to("/etc/hostname")


def link_to_folder_out(folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent.parent.parent)


def loop(folder: Path) -> None:
    (folder / "loop").symlink_to(folder / "loop")


def class_folder_out(folder: Path) -> None:
    picture(folder.parent.parent.parent / "outside" / "1.png")
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent.parent.parent / "outside")


@pytest.mark.parametrize("spoil", [class_folder_out, link_out, link_to_folder_out, loop])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    clinic(tmp_path / "data" / "a")
    spoil(tmp_path / "data" / "a" / "normal")
    with pytest.raises(DataError, match="1 symbolic links lead out of this peer's data-dir"):
        load(tmp_path / "data")


def test_links_inside_are_read_and_folders_of_links_counted(tmp_path: Path) -> None:
    clinic(tmp_path / "a")
    (tmp_path / "a" / "normal" / "more.png").symlink_to(tmp_path / "a" / "normal" / "1.png")
    (tmp_path / "a" / "normal" / "again").symlink_to(tmp_path / "a" / "normal")
    problem = load(tmp_path)
    assert sum(problem.sizes(0).values()) == 21
    assert account(problem).left_out == {"link to a folder": 1}


def test_one_file_is_read_as_the_run_reads_it(tmp_path: Path) -> None:
    picture(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        np.testing.assert_array_equal(read_pixels(tmp_path / "x.png", options()), [image])
    assert read_pixels(tmp_path / "x.png", options(shape="1x8x8")) == "is 1x4x5"
    (tmp_path / "x.txt").write_text("no picture")
    assert read_pixels(tmp_path / "x.txt", options()) == "no image"


def test_depths_mix_only_on_one_range_or_on_demand(tmp_path: Path) -> None:
    clinic(tmp_path / "a")
    for k in range(10):
        picture(tmp_path / "a" / "normal" / f"deep {k}.png", deep=True)
    with pytest.raises(DataError, match=r"2 depths.*: 20 have 8 bits and 10 have 16 bits"):
        load(tmp_path)
    scaled = load(tmp_path, depth="scale", mean="0", std="1").inputs
    assert scaled.max() <= 255
    assert (scaled == scaled.round()).all(), "of 257 v in 65,535 the same as of v in 255"
    assert load(tmp_path, depth="as-stored", mean="0", std="1").inputs.max() > 255


def test_a_schema_of_images_is_drafted_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clinic(tmp_path / "a", 30)
    clinic(tmp_path / "b", 30)
    folders = [str(tmp_path / name) for name in "ab"]
    assert main(["schema", *folders, "--out", str(tmp_path / "schema.toml")]) == 0
    digest = capsys.readouterr().out.split('image-folder.schema = "')[1][:16]
    assert len(load(tmp_path, 2, schema=digest).inputs) == 120
    picture(tmp_path / "b" / "normal" / "new", "BMP")
    with pytest.raises(DataError, match=r"1 of 61 images violate schema.toml: .*'BMP'"):
        load(tmp_path, 2, schema="file")
    with pytest.raises(DataError, match="does not have the digest"):
        load(tmp_path, 2, schema="0" * 16)


def test_folders_of_patients_stay_together(tmp_path: Path) -> None:
    for name in NAMES.split(", "):
        for k in range(30):
            picture(tmp_path / "a" / name / f"patient {k % 10}" / f"{k}.png")
    own = load(tmp_path)
    assert "60 without PatientID" in account(own).line
    problem = load(tmp_path, group="folder")
    assert problem.groups is not None
    parts = [set(problem.groups[part.rows[0]]) for part in (problem.train, problem.test)]
    assert not parts[0] & parts[1]
    assert len(parts[0] | parts[1]) == 10
    assert "of 10 folders" in account(problem).line


PATIENT = "Rosalind-4711"


def dicom(path: Path, patient: str, drawn: Floats, inverted: bool) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    values = np.clip(drawn, 0, 4095).astype(np.uint16)
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = CTImageStorage, generate_uid()
    scan.Rows, scan.Columns, scan.SamplesPerPixel = 4, 5, 1
    scan.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    scan.BitsAllocated, scan.BitsStored, scan.HighBit, scan.PixelRepresentation = 16, 12, 11, 0
    scan.PixelData = (4095 - values if inverted else values).tobytes()
    scan.PatientID, scan.PatientName = patient, patient
    path.parent.mkdir(parents=True, exist_ok=True)
    scan.save_as(path, enforce_file_format=True)


def scans(folder: Path, inverted: bool = False, patients: int = 10, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    for k in range(40):
        name = ("normal", "ill")[k % 2]
        patient = f"{PATIENT}-{k % patients}"
        values = draw.normal(1000 + 1500 * (k % 2), 500, (4, 5))
        dicom(folder / name / f"IM{k}", patient, values, inverted)


def test_what_the_groups_do_not_know_is_told(tmp_path: Path) -> None:
    scans(tmp_path / "a", patients=1)
    with pytest.raises(DataError, match=r"40 images .* of one patient .*group = .none"):
        load(tmp_path, classes="normal, ill")
    read = account(load(tmp_path, classes="normal, ill, rare", group="none"))
    assert read.line == "40 files, 40 read, none of rare"
    for path in (tmp_path / "a").rglob("IM*"):
        dicom(path, "", np.zeros((4, 5)), False)
    read = account(load(tmp_path, classes="normal, ill", seed=1))
    assert "40 without PatientID" in read.line


KEYS: dict[str, Any] = {
    "dataset": "image-folder", "image-folder.classes": "normal, ill", "image-folder.shape": "1x4x5",
    "peers": 2, "num-server-rounds": 3, "method": "fedavg", "model": "linear", "device": "cpu",
}  # fmt: skip


@pytest.mark.slow
def test_no_output_has_the_name_of_a_patient(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        scans(tmp_path / "data" / name)
    keys = [f"{key}={value}" for key, value in KEYS.items()]
    out = tmp_path / "runs"
    items = [*keys, f"data-dir={tmp_path / 'data'}", f"out={out}"]
    with caplog.at_level(logging.DEBUG, "coterie"):
        assert main(["run", *items, "--name", "x"]) == 0
        problem = load(tmp_path / "data", 2, classes="normal, ill")
        assert problem.groups is not None
        for peer in range(2):
            train, test = (problem.groups[p.rows[peer]] for p in (problem.train, problem.test))
            assert not set(train) & set(test)
        scans(tmp_path / "data" / "a" / "test")
        scans(tmp_path / "data" / "a" / "train")
        for kind in ("normal", "ill"):
            (tmp_path / "data" / "a" / kind).rename(tmp_path / kind)
        assert main(["run", *items, "seed=1", "--name", "y"]) != 0  # patients are in both parts
        images = str(tmp_path / "normal")
        command = ["predict", str(out / "x"), "--peer", "a", images, "--out", str(out / "p.csv")]
        assert main(command) == 0
        picture(tmp_path / "png" / "1.png")
        assert main([*command[:4], str(tmp_path / "png"), *command[5:]]) != 0
        assert main(["schema", images, "--out", str(out / "schema.toml")]) == 0
    said = capfd.readouterr()
    written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert "of 10 patients" in said.out
    assert "images of 8 bits, but the model was trained on images of 12 bits" in said.err + said.out
    assert "10 groups (such as patients) have rows in both train and test" in said.out + said.err
    assert len(written) > 10
    for text in (said.out.encode(), said.err.encode(), caplog.text.encode(), *written):
        assert PATIENT.encode() not in text


@pytest.mark.slow
def test_two_clinics_of_opposite_photometry_learn_as_two_of_the_same(tmp_path: Path) -> None:
    accuracy = []
    for name, inverted in (("same", False), ("opposite", True)):
        for clinic, is_inverted in (("a", False), ("b", inverted)):
            scans(tmp_path / name / clinic, is_inverted, patients=40, seed=1)
        result = run(KEYS | {"data-dir": str(tmp_path / name)}, tmp_path / f"run {name}")
        accuracy.append(result.metric("test_accuracy"))
    np.testing.assert_array_equal(accuracy[0], accuracy[1])
    assert np.mean(accuracy) > 0.9


def masked(folder: Path, count: int = 12, high: int = 255) -> None:
    y, x = np.mgrid[:8, :8]
    for k in range(count):
        row, column = G.uniform(2, 6, 2)
        inside = (y - row) ** 2 + (x - column) ** 2 < 5
        values = (60 + 120 * inside + G.normal(0, 5, inside.shape)).astype(np.uint8)
        for kind, pixels, end in (
            ("images", values, ""),
            ("masks", inside * np.uint8(high), "_mask"),
        ):
            path = folder / kind / f"p{k % 4}" / f"{k}{end}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)


SEGMENTATION: dict[str, Any] = {"classes": "background, lesion", "shape": "1x8x8", "masks": "masks"}


@pytest.mark.slow
def test_masks_of_ones_own_are_segmented(tmp_path: Path) -> None:
    for name in "ab":
        masked(tmp_path / "data" / name)
    keys = {f"image-folder.{key}": value for key, value in SEGMENTATION.items()}
    flat = KEYS | keys | {"model": "unet2d", "data-dir": str(tmp_path / "data")}
    result = run(flat | {"num-server-rounds": 20, "learning-rate": 0.3}, tmp_path / "run")
    for peer, score in enumerate(result.metric("test_accuracy")):
        card = json.loads((result.directory / "models" / f"peer-000{peer}.json").read_text())
        assert card["dice"] == {"dice_lesion": pytest.approx(score, abs=1e-4)}
        assert score > 0.6


def test_masks_are_classes_of_pixels_in_the_order_of_the_images(tmp_path: Path) -> None:
    masked(tmp_path / "a")
    two = load(tmp_path, **SEGMENTATION)
    assert {*np.unique(two.train.targets[0])} == {0, 1}
    bright = two.inputs[two.train.rows[0]][:, 0] > 0.5
    assert (bright == two.train.targets[0]).mean() > 0.95
    three: dict[str, Any] = {**SEGMENTATION, "classes": "background, lesion, vessel"}
    with pytest.raises(DataError, match="values other than 0 to 2"):
        load(tmp_path, **three)
    (tmp_path / "a" / "masks" / "notes.txt").write_text("by two readers")
    assert account(load(tmp_path, seed=2, **SEGMENTATION)).left_out == {"no image (.txt)": 1}
    twice = tmp_path / "a" / "images" / "p0" / "0.bmp"
    Image.open(twice.with_suffix(".png")).save(twice)
    with pytest.raises(
        DataError, match=r"0 have no partner, 1 have the name of another.*0\.(bmp|png)"
    ):
        load(tmp_path, seed=3, **SEGMENTATION)
    twice.unlink()
    (tmp_path / "a" / "masks" / "p0" / "0_mask.png").unlink()
    with pytest.raises(DataError, match=r"11 masks .* 1 have no partner.*images/p0/0.png"):
        load(tmp_path, seed=1, **SEGMENTATION)


def test_volumes_and_their_masks(tmp_path: Path) -> None:
    import nibabel

    make: Any = nibabel.Nifti1Image
    for k in range(6):
        brain = np.zeros((6, 5, 4), dtype=np.uint8)
        brain[: 2 + k % 3] = 1
        for kind, values in (("images", 100.0 * brain), ("masks", brain)):
            path = tmp_path / "a" / kind / f"{k}.nii.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            nibabel.save(make(values, np.diag([-1, 1, 1, 1])), path)
    problem = load(tmp_path, **{**SEGMENTATION, "shape": "1x6x5x4"}, mean="0", std="1")
    inputs = problem.inputs[problem.train.rows[0]][:, 0]
    np.testing.assert_array_equal(inputs, 100.0 * problem.train.targets[0])
    assert problem.train.targets[0][:, -1].all(), "turned to point to the right"
