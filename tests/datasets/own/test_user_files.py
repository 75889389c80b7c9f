"""Data sets downloaded by users: tiny files in the real formats, valid, damaged and missing."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.datasets.files.fingerprint import Arrays, cached
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.published import languages as languages_module
from coterie.datasets.published.femnist import FemnistOptions, read_femnist
from coterie.datasets.published.heart_disease import HOSPITALS, INCLUDED, read_heart_disease
from coterie.datasets.published.images import read_cinic10
from coterie.datasets.published.ixi import IxiOptions, read_ixi
from coterie.datasets.published.languages import (
    LanguagesOptions,
    Wiki40bOptions,
    read_languages,
    read_wiki40b,
)
from coterie.datasets.published.office_home import DOMAINS, WEIGHTS, read_office_home
from coterie.datasets.source import Source, spread
from coterie.datasets.table import DATASETS, dataset_of
from tests import tiny_files as tiny

BROUGHT = ("cinic10", "femnist", "office-home", "ixi", "languages", "wiki40b")
REMEDY = {
    "cinic10": r"train, valid, test .*cinic10 or .*CINIC-10; unpack CINIC-10\.tar\.gz",
    "femnist": r"train, test .*femnist or .*; make them with LEAF",
    "office-home": r"Art, Clipart, .*; unpack OfficeHomeDataset",
    "ixi": r"_image\.nii\.gz and .*_label\.nii\.gz.*; download them with TorchIO",
    "languages": r"install\.ca\.txt\.gz or .*; `apt-get install installation-guide-amd64`",
    "wiki40b": r"ca/train\.txt, ca/test\.txt, .*; write the `text`",
}


@pytest.fixture(autouse=True)
def _no_manuals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(languages_module, "MANUALS", tmp_path / "system")


def options(name: str) -> object:
    table = DATASETS[name].options
    return None if table is None else table()


@pytest.mark.parametrize("name", BROUGHT)
def test_what_is_missing_and_how_to_get_it_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=REMEDY[name]) as caught:
        dataset_of(name).load(Partition(kind="natural"), 2, 0, tmp_path / "data", options(name))
    message = str(caught.value)
    assert message.startswith(f"dataset {name} is missing: expected ")
    assert str(tmp_path / "data") in message
    assert "\n" not in message
    assert not (tmp_path / "data").exists()


# ---- CINIC-10 ---------------------------------------------------------------------------------


def test_cinic10(tmp_path: Path) -> None:
    images = tiny.write_cinic10(tmp_path)
    source = read_cinic10(tmp_path)
    assert source.inputs.dtype == np.uint8
    np.testing.assert_array_equal(source.inputs, np.stack(images).transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(source.targets, np.tile(np.repeat(np.arange(10), 2), 3))
    np.testing.assert_array_equal(source.train, np.arange(40))  # train and valid, merged
    np.testing.assert_array_equal(source.test, np.arange(40, 60))


def test_grey_images_of_cinic10_become_colour(tmp_path: Path) -> None:
    tiny.write_cinic10(tmp_path, each=1)
    file = next((tmp_path / "cinic10" / "train" / "airplane").iterdir())
    grey = np.arange(1024, dtype=np.uint32).reshape(32, 32).astype(np.uint8)
    Image.fromarray(grey).save(file)
    np.testing.assert_array_equal(read_cinic10(tmp_path).inputs[0], np.stack([grey] * 3))


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    tiny.write_cinic10(tmp_path, each=1)
    file = next((tmp_path / "cinic10" / "valid" / "frog").iterdir())
    whole = file.read_bytes()
    for content in (b"", b"<html>", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(DataError, match="not a readable image") as caught:
            read_cinic10(tmp_path)
        assert str(file) in str(caught.value)
    Image.new("RGB", (32, 31)).save(file)
    with pytest.raises(DataError, match=r"\(31, 32\) pixels, expected 32x32"):
        read_cinic10(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match="frog: no images"):
        read_cinic10(tmp_path)


# ---- FEMNIST ----------------------------------------------------------------------------------


def test_femnist(tmp_path: Path) -> None:
    """A pixel in 1,000ths identifies the image; writers are numbered by name."""

    def image(mark: float) -> list[float]:
        return [1.0] * 5 + [mark] + [0.0] * 778

    train, test = tmp_path / "femnist" / "train", tmp_path / "femnist" / "test"
    tiny.leaf(train / "b.json", {"zoe": ([image(0.1), image(0.2)], [61, 36])})
    tiny.leaf(train / "a.json", {"bob": ([image(0.3)], [9]), "amy": ([image(0.4)], [45])})
    tiny.leaf(test / "a.json", {"zoe": ([image(0.5)], [0]), "amy": ([image(0.6)], [37])})
    source = read_femnist(tmp_path, FemnistOptions())
    assert source.inputs.dtype == np.uint8
    assert source.inputs.shape == (6, 1, 28, 28)
    assert source.groups is not None
    marks = np.rint(source.inputs[:, 0, 0, 5] / 25.5).astype(int)
    result = {m: (y, g) for m, y, g in zip(marks, source.targets, source.groups, strict=True)}
    assert result == {1: (61, 2), 2: (36, 2), 3: (9, 1), 4: (45, 0), 5: (0, 2), 6: (37, 0)}
    assert sorted(marks[source.train]) == [1, 2, 3, 4]
    assert sorted(marks[source.test]) == [5, 6]
    assert (source.inputs[:, 0, 0, :5] == 255).all()
    letters = read_femnist(tmp_path, FemnistOptions(classes="a-to-j"))
    assert letters.outputs == 10
    assert sorted(letters.targets) == [0, 1, 9]
    assert len(letters.test) == 1
    partition = Partition(kind="natural", samples_per_peer=0, min_samples=1)
    problem = dataset_of("femnist").load(partition, 2, 0, tmp_path, FemnistOptions())
    assert [len(rows) for rows in problem.train.rows] == [
        1,
        2,
    ]  # Amy and Zoe; Bob has no test set


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a LEAF file"),
        ('{"users": ["a"], "user_data": {}}', "not a LEAF file .KeyError"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1, 2]], "y": [0]}}}', "28x28"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[2PIXELS]], "y": [0]}}}', "brightness"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1PIXELS]], "y": [62]}}}', "0 to 61"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1PIXELS]], "y": []}}}', "0 labels for 1"),
    ],
)
def test_damaged_leaf_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    tiny.write_femnist(tmp_path, writers=2)
    file = sorted((tmp_path / "femnist" / "test").iterdir())[0]
    file.write_text(content.replace("PIXELS", ", 0" * 783))
    with pytest.raises(DataError, match=message) as caught:
        read_femnist(tmp_path, FemnistOptions())
    assert str(file) in str(caught.value)


# ---- Office-Home ------------------------------------------------------------------------------


@pytest.mark.slow
def test_office_home_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torchvision.models import ResNet18_Weights, resnet18

    tiny.write_office_home(tmp_path)
    source = read_office_home(tmp_path)
    assert source.inputs.shape == (40, 512)
    assert source.groups is not None
    np.testing.assert_array_equal(source.groups, np.repeat(np.arange(4), 10))
    np.testing.assert_array_equal(source.targets, np.tile(np.repeat([0, 1], 5), 4))
    for group in range(4):  # one of five of each domain and class
        tested = source.test[source.groups[source.test] == group]
        assert sorted(source.targets[tested]) == [0, 1]
    network = resnet18()
    network.load_state_dict(torch.load(tmp_path / WEIGHTS, weights_only=True))
    network.fc = torch.nn.Identity()
    with Image.open(tmp_path / "office-home" / DOMAINS[3] / "Backpack" / "00004.jpg") as image:
        expected = network.eval()(ResNet18_Weights.IMAGENET1K_V1.transforms()(image)[None])
    np.testing.assert_allclose(source.inputs[-1], expected.detach()[0], rtol=1e-3, atol=1e-5)

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("coterie.datasets.published.office_home._features", never)
    np.testing.assert_array_equal(read_office_home(tmp_path).inputs, source.inputs)
    (tmp_path / "office-home" / "Art" / "Backpack" / "00004.jpg").unlink()
    with pytest.raises(AssertionError, match="computed again"):
        read_office_home(tmp_path)


def test_office_home_says_that_the_extractor_is_missing(tmp_path: Path) -> None:
    tiny.write_office_home(tmp_path, each=1)
    (tmp_path / WEIGHTS).write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"resnet18-f37072fd\.pth: not the weights of a ResNet-18"):
        read_office_home(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(DataError, match=r"expected resnet18-f37072fd\.pth in .*; download https:"):
        read_office_home(tmp_path)


# ---- Heart disease ----------------------------------------------------------------------------


def test_heart_disease(tmp_path: Path) -> None:
    """Features of a patient computed by hand, before standardisation."""
    tiny.write_heart_disease(tmp_path)
    cleveland = tmp_path / "heart-disease" / "processed.cleveland.data"
    # Age 50, 60, 70, 80; the third lacks chest pain, the fourth only columns that are dropped.
    lines = [tiny.patient(50, 1, 0, 0), tiny.patient(60, 4, 2, 3)]
    lines += [tiny.patient(70, 2, 1, 1, missing=[2]), tiny.patient(80, 3, 1, 1, missing=[10, 11])]
    cleveland.write_text("\n".join(lines) + "\n")
    source = read_heart_disease(tmp_path)
    assert source.groups is not None
    mine = source.groups == 0
    np.testing.assert_array_equal(source.targets[mine], [0, 1, 1])
    assert source.inputs.shape[1] == 13
    # ceil(0.34 * 3) = 2 test patients; the training one is standardised by itself: all zeros.
    (trained,) = source.train[mine[source.train]]
    np.testing.assert_array_equal(source.inputs[trained], 0)
    raw = np.array(
        [
            [50, 1, 180, 200, 0, 100, 0, 1.5, 0, 0, 0, 0, 0],
            [60, 1, 190, 200, 0, 90, 0, 1.5, 0, 0, 1, 0, 1],
            [80, 1, 210, 200, 0, 70, 0, 1.5, 0, 1, 0, 1, 0],
        ]
    )
    np.testing.assert_allclose(source.inputs[mine], raw - raw[trained])


def test_hospitals_standardise_by_their_own_training_patients(tmp_path: Path) -> None:
    tiny.write_heart_disease(tmp_path)
    source = read_heart_disease(tmp_path)
    assert source.groups is not None
    assert len(source.test) == 4 * 5  # ceil(0.34 * 12)
    for hospital in range(4):
        rows = source.train[source.groups[source.train] == hospital]
        np.testing.assert_allclose(source.inputs[rows].mean(axis=0), 0, atol=1e-12)
        deviations = source.inputs[rows].std(axis=0)
        assert np.allclose(deviations, np.where(deviations > 0.5, 1, 0))
        tested = source.test[source.groups[source.test] == hospital]
        assert set(source.targets[tested]) == {0, 1}
    changed = (tmp_path / "heart-disease" / "processed.va.data").read_text().splitlines()
    row = source.test[source.groups[source.test] == 3][0] - 36  # a patient of the last one
    changed[row] = changed[row].replace(changed[row].split(",")[0], "99.0", 1)
    (tmp_path / "heart-disease" / "processed.va.data").write_text("\n".join(changed))
    other = read_heart_disease(tmp_path)
    np.testing.assert_array_equal(other.inputs[source.train], source.inputs[source.train])
    assert (other.inputs[36 + row] != source.inputs[36 + row]).any()


def test_the_included_files_are_ucis_and_give_flambys_numbers_of_patients(tmp_path: Path) -> None:
    """UCI's sizes in bytes; as published, train and test 199/104, 172/89, 30/16, 85/45."""
    files = tomllib.loads(INCLUDED.read_text(encoding="ascii"))
    assert [len(files[name]) for name in HOSPITALS] == [18461, 10263, 4109, 6737]
    cleveland = hashlib.sha256(files["cleveland"].encode()).hexdigest()
    assert (cleveland[:8], cleveland[-6:]) == ("a74b7efa", "0427c8")
    source = read_heart_disease(tmp_path)
    assert source.groups is not None
    assert np.bincount(source.groups[source.train]).tolist() == [199, 172, 30, 85]
    assert np.bincount(source.groups[source.test]).tolist() == [104, 89, 16, 45]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("63.0,1.0,x" + ",0" * 11, r"line 1: could not convert"),
        ("1 0 63 1 -9 -9", r"line 1: could not convert"),
        ("63.0,1.0", r"line 1: 2 values, expected 14; use the processed"),
        ("", "fewer than two complete patients"),
        (tiny.patient(50, 1, 1, 0) + "\n" + tiny.patient(50, 1, 1, 0, [0]), "fewer than two"),
    ],
)
def test_damaged_patients_are_refused(tmp_path: Path, content: str, message: str) -> None:
    tiny.write_heart_disease(tmp_path)
    file = tmp_path / "heart-disease" / "processed.hungarian.data"
    file.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_heart_disease(tmp_path)
    assert str(file) in str(caught.value)


# ---- IXI --------------------------------------------------------------------------------------


def test_ixi(tmp_path: Path) -> None:
    tiny.write_ixi(tmp_path, tiny.SUBJECTS)
    source = read_ixi(tmp_path, IxiOptions(size="8-6-7"))
    assert source.task == "segmentation"
    assert source.inputs.shape == (15, 1, 8, 6, 7)
    assert source.inputs.dtype == np.float32
    assert source.targets.dtype == np.uint8
    assert source.groups is not None
    np.testing.assert_array_equal(source.groups, np.repeat([0, 1, 2], 5))
    np.testing.assert_array_equal(np.bincount(source.groups[source.test]), [1, 1, 1])
    expected = np.zeros((8, 6, 7))
    expected[2:-2, 1:-1, 1:-1] = 1
    np.testing.assert_array_equal(source.targets, np.stack([expected] * 15))
    for volume in source.inputs:
        assert volume.mean() == pytest.approx(0, abs=1e-5)
        assert volume.std() == pytest.approx(1, abs=1e-4)
        assert volume[0][expected == 1].mean() > volume[0][expected == 0].mean() + 1


def test_ixi_volumes_keep_their_content_at_another_size(tmp_path: Path) -> None:
    tiny.write_ixi(tmp_path, tiny.SUBJECTS[:2], shape=(16, 12, 8))
    small = read_ixi(tmp_path, IxiOptions(size="8-6-4"))
    assert small.inputs.shape == (2, 1, 8, 6, 4)
    assert set(np.unique(small.targets)) == {0, 1}
    assert small.targets.mean() == pytest.approx(0.125, abs=0.07)  # half of each side
    inside = small.inputs[:, 0][small.targets == 1]
    assert inside.mean() > small.inputs[:, 0][small.targets == 0].mean() + 1


def test_ixi_in_flambys_folders(tmp_path: Path) -> None:
    tiny.write_ixi(tmp_path, tiny.SUBJECTS)
    flat = read_ixi(tmp_path, IxiOptions(size="8-6-7"))
    for subject in tiny.SUBJECTS:
        for part, folder in (("image", "T1"), ("label", "label"), ("image", "T2")):
            to = tmp_path / "IXI_sample" / subject / folder
            to.mkdir(parents=True)
            old = tmp_path / "ixi" / part / f"{subject}_{part}.nii.gz"
            content = old.read_bytes() if folder != "T2" else b"never read"
            (to / old.name).write_bytes(content)
    os.rename(tmp_path / "ixi", tmp_path / "elsewhere")
    nested = read_ixi(tmp_path, IxiOptions(size="8-6-7"))
    np.testing.assert_array_equal(nested.inputs, flat.inputs)


def test_damaged_volumes_are_refused(tmp_path: Path) -> None:
    tiny.write_ixi(tmp_path, tiny.SUBJECTS[:3])
    image = tmp_path / "ixi" / "image" / f"{tiny.SUBJECTS[1]}_image.nii.gz"
    label = tmp_path / "ixi" / "label" / f"{tiny.SUBJECTS[1]}_label.nii.gz"
    whole = image.read_bytes()
    for content in (b"no gzip", gzip.compress(b"no NIfTI"), whole[: len(whole) // 2]):
        image.write_bytes(content)
        with pytest.raises(DataError, match="not a readable NIfTI file") as caught:
            read_ixi(tmp_path, IxiOptions(size="8-6-7"))
        assert str(image) in str(caught.value)
    image.write_bytes(whole)
    tiny.write_ixi(tmp_path / "other", tiny.SUBJECTS[1:2], shape=(4, 4, 4))
    os.replace(tmp_path / "other" / "ixi" / "label" / label.name, label)
    with pytest.raises(DataError, match=r"\(4, 4, 4\) voxels, but .* has \(8, 6, 7\)"):
        read_ixi(tmp_path, IxiOptions(size="8-6-7"))
    label.unlink()
    with pytest.raises(DataError, match=r"has no IXI001-Guys-1001_label\.nii\.gz"):
        read_ixi(tmp_path, IxiOptions(size="8-6-7"))


@pytest.mark.parametrize("size", ["48-60", "48-60-0", "a-b-c", ""])
def test_an_impossible_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="size must be three sides"):
        IxiOptions(size=size)


# ---- Languages --------------------------------------------------------------------------------


def decoded(source: Source, rows: Ints) -> str:
    return bytes(source.inputs[rows].reshape(-1).tolist()).decode(errors="replace")


def test_languages(tmp_path: Path) -> None:
    tiny.write_languages(tmp_path)
    source = read_languages(tmp_path, LanguagesOptions(codes="ca-es", context=16))
    assert source.task == "language"
    assert source.outputs == 256
    assert source.inputs.dtype == np.uint8
    assert source.inputs.shape == source.targets.shape
    assert source.groups is not None
    np.testing.assert_array_equal(source.inputs[:, 1:], source.targets[:, :-1])
    for group, letters in enumerate(("abcd", "efgh")):
        for rows in (source.train, source.test):
            text = decoded(source, rows[source.groups[rows] == group])
            assert set(text) <= set(letters) | set(" \n")
    text = decoded(source, source.train[source.groups[source.train] == 0])
    assert "\n" in text  # only between paragraphs
    assert len(text) / text.count("\n") > 100
    assert 0.15 < len(source.test) / len(source.inputs) < 0.25
    blank = np.array([0.0]), np.array([1.0])
    np.testing.assert_equal(source.normalisation, blank)


def test_a_language_is_tested_on_as_many_examples_as_asked_for(tmp_path: Path) -> None:
    tiny.write_languages(tmp_path)
    whole, some = (
        read_languages(tmp_path, LanguagesOptions(codes="ca-es", context=16, test_examples=k))
        for k in (0, 3)
    )
    assert some.groups is not None
    assert whole.groups is not None
    assert np.bincount(some.groups[some.test]).tolist() == [3, 3]
    assert len(some.train) == len(whole.train)
    for group in (0, 1):
        firsts = some.inputs[some.test[some.groups[some.test] == group]]
        every = whole.inputs[whole.test[whole.groups[whole.test] == group]]
        np.testing.assert_array_equal(firsts, every[:3])


def test_test_stretches_of_a_text_are_its_own(tmp_path: Path) -> None:
    """The text is numbers in order; every fifth block of 4,096 bytes is in the test set."""
    folder = tmp_path / "languages"
    folder.mkdir()
    (folder / "install.en.txt").write_text(" ".join(f"{k:07d}" for k in range(10_000)))
    source = read_languages(tmp_path, LanguagesOptions(codes="en", context=64))
    numbers = [
        np.array(re.findall(r"\d{7}", decoded(source, rows)), dtype=int)
        for rows in (source.train, source.test)
    ]
    assert not np.isin(numbers[1], numbers[0]).any()
    # 80,000 bytes: blocks 4, 9, 14 in full, and 19 from 77,824 to 80,000.
    assert set(numbers[1] * 8 // 4096) <= {4, 9, 14, 19}
    assert len(numbers[1]) == pytest.approx((3 * 4096 + 2176) / 8, abs=16)


def test_rulers_and_boxes_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "languages"
    folder.mkdir()
    text = "Títol\n=====\n\n│uno│dos│\n├───┼───┤\n\n  més   text\n  aquí...\n" * 40
    (folder / "install.ca.txt").write_text(text, encoding="utf-8")
    source = read_languages(tmp_path, LanguagesOptions(codes="ca", context=8))
    assert "\nuno dos\nmés text aquí... Títol\n" in decoded(source, source.train)


def test_damaged_texts_are_refused(tmp_path: Path) -> None:
    tiny.write_languages(tmp_path)
    file = tmp_path / "languages" / "install.es.txt.gz"
    for content in (b"no gzip", gzip.compress("ñ".encode("latin1") * 99)):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"not a text in UTF-8|damaged gzip") as caught:
            read_languages(tmp_path, LanguagesOptions(codes="ca-es"))
        assert str(file) in str(caught.value)
    file.write_bytes(gzip.compress(b"short"))
    with pytest.raises(
        DataError, match=r"languages\.context = 128: the training part of language es"
    ):
        read_languages(tmp_path, LanguagesOptions(codes="ca-es"))
    for codes in ("ca-ca", "", "c a"):
        with pytest.raises(ValueError, match="codes must be different languages"):
            LanguagesOptions(codes=codes)


@pytest.mark.skipif(
    not Path("/usr/share/doc/installation-guide-amd64/ca").is_dir(),
    reason="installation-guide-amd64 absent",
)
def test_the_real_manuals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        languages_module, "MANUALS", Path("/usr/share/doc/installation-guide-amd64")
    )
    source = read_languages(tmp_path, LanguagesOptions())
    assert source.groups is not None
    for group, word in enumerate((" els ", " los ", " der ", " het ")):
        rows = source.train[source.groups[source.train] == group]
        text = decoded(source, rows)
        assert len(text) > 250_000
        counts = [text.count(other) for other in (" els ", " los ", " der ", " het ")]
        assert np.argmax(counts) == group, word


# ---- Wiki-40B ---------------------------------------------------------------------------------


def test_wiki40b_in_bytes(tmp_path: Path) -> None:
    tiny.write_wiki40b(tmp_path)
    table = Wiki40bOptions(codes="ca-es", context=8, tokens=200, vocabulary="bytes")
    source = read_wiki40b(tmp_path, table)
    assert source.groups is not None
    english = [rows[source.groups[rows] == 0] for rows in (source.train, source.test)]
    assert decoded(source, english[0]).startswith(f"Title ca 0\n{'x' * 20}\nmés 0\nTitle ca 1\n")
    assert [len(rows) for rows in english] == [199 // 8, 19 // 8]  # 200 and 20 tokens
    np.testing.assert_array_equal(source.inputs[:, 1:], source.targets[:, :-1])


def test_wiki40b_in_gpt2s_tokens(tmp_path: Path) -> None:
    tiny.write_wiki40b(tmp_path)
    table = Wiki40bOptions(codes="ca-es", context=8, tokens=200)
    with pytest.raises(DataError, match=r"expected vocab\.json, merges\.txt in .*gpt2; download"):
        read_wiki40b(tmp_path, table)
    tiny.write_gpt2_vocabulary(tmp_path)
    source = read_wiki40b(tmp_path, table)
    assert source.outputs == 50_257
    assert source.inputs.dtype == np.int32
    vocabulary = json.loads((tmp_path / "gpt2" / "vocab.json").read_text())
    assert source.groups is not None
    tokens = source.inputs[source.train[source.groups[source.train] == 0]].reshape(-1)
    merged = np.flatnonzero(tokens == vocabulary["xx"])
    assert len(merged) >= 10
    assert merged[:10].tolist() == list(range(merged[0], merged[0] + 10))  # 20 x's in pairs
    (tmp_path / "gpt2" / "merges.txt").write_text("#version: 0.2\nx unknown\n")
    with pytest.raises(DataError, match="not GPT-2's vocabulary"):
        read_wiki40b(tmp_path, Wiki40bOptions(codes="ca", context=8, tokens=64))


def test_a_character_cut_in_two_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "wiki40b" / "ca"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        (folder / f"{part}.txt").write_text("a" + "é" * 500, encoding="utf-8")
    table = Wiki40bOptions(codes="ca", context=4, tokens=10, vocabulary="bytes")
    source = read_wiki40b(tmp_path, table)
    assert decoded(source, source.train).startswith("aéé")
    (folder / "test.txt").write_bytes("é".encode("latin1") * 500)
    with pytest.raises(DataError, match=r"test\.txt: not a text in UTF-8"):
        read_wiki40b(tmp_path, table)


# ---- Common -----------------------------------------------------------------------------------

WRITE: dict[str, Callable[[Path], object]] = {
    "cinic10": tiny.write_cinic10,
    "femnist": tiny.write_femnist,
}
READ: dict[str, Callable[[Path], Source]] = {
    "cinic10": read_cinic10,
    "femnist": lambda data_dir: read_femnist(data_dir, FemnistOptions()),
}


@pytest.mark.parametrize("name", WRITE)
def test_statistics_are_of_the_training_images(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path)
    read = READ[name]
    source = read(tmp_path)
    training = source.inputs[source.train].astype(np.float64)
    mean, std = source.normalisation
    np.testing.assert_allclose(mean[:, 0, 0], training.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(std[:, 0, 0], training.std(axis=(0, 2, 3)))


def test_what_was_read_is_kept_until_a_file_or_the_reader_changes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("1")
    calls = []

    def read(settings: str) -> list[int]:
        def make() -> Arrays:
            calls.append(settings)
            return {"a": np.array([int(file.read_text())])}

        result: list[int] = cached(tmp_path, "thing", [file], settings, make)["a"].tolist()
        return result

    assert read("1") == read("1") == [1]
    assert calls == ["1"]
    file.write_text("22")
    assert read("1") == [22]
    assert read("2") == read("2") == [22]
    assert calls == ["1", "1", "2"]
    kept = tmp_path / "cache" / "thing.npz"
    for content in (b"", b"damaged", kept.read_bytes()[:-40]):
        kept.write_bytes(content)
        assert read("2") == [22]
    assert len(calls) == 6
    assert [path.name for path in kept.parent.iterdir()] == ["thing.npz"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    for _ in range(2):
        assert cached(tmp_path, "thing", [], "1", lambda: {"a": np.ones(1)})["a"].tolist() == [1.0]


@pytest.mark.parametrize(("size", "count"), [(10, 3), (7, 7), (5, 1), (4, 0)])
def test_spread_rows(size: int, count: int) -> None:
    rows = spread(np.arange(size), count)
    assert len(set(rows.tolist())) == len(rows) == count
    if count > 1:
        assert np.ptp(np.diff(rows)) <= 1
