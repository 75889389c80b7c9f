"""A cached result counts while all that was read has the same bytes; times decide nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coterie.datasets.files.fingerprint import (
    cached,
    content,
    exists,
    of_arrays,
    record,
    recorded,
    remembered,
)
from coterie.datasets.problem import DataError


def rewrite(path: Path, data: bytes) -> None:
    """Write other bytes with the same size and time."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_result_counts_while_the_bytes_are_the_same(tmp_path: Path) -> None:
    file, calls = tmp_path / "f", list[Path]()

    @remembered(2)
    def load(path: Path) -> bytes:
        calls.append(path)
        return content(path)

    for data in (b"one", b"two"):
        file.write_bytes(data) if not file.exists() else rewrite(file, data)
        assert load(file) == load(file) == data
    assert len(calls) == 2
    file.unlink()
    with pytest.raises(FileNotFoundError):
        load(file)
    file.write_bytes(b"two")
    assert load(file) == b"two"


def test_names_missing_files_and_inner_loaders_count(tmp_path: Path) -> None:
    calls = list[int]()

    @remembered(1)
    def inner(folder: Path) -> list[str]:
        record(folder)
        return sorted(path.name for path in folder.rglob("*"))

    @remembered(1)
    def load(folder: Path, other: Path) -> tuple[list[str], bool]:
        calls.append(1)
        return inner(folder), exists(other)

    (tmp_path / "d" / "e").mkdir(parents=True)
    given_ = tmp_path / "d", tmp_path / "other"
    assert load(*given_) == load(*given_) == (["e"], False)
    (tmp_path / "d" / "e" / "new").touch()
    assert load(*given_) == (["e", "new"], False)
    given_[1].touch()
    assert load(*given_) == load(*given_) == (["e", "new"], True)
    assert len(calls) == 3


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data", tmp_path / "disk"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
    (inside / "out").symlink_to(outside)
    (inside / "up").symlink_to(tmp_path)
    (inside / "again").symlink_to(inside / "a")
    with recorded() as reads:
        record(inside)
    (outside / "new").touch()
    assert reads.hold()
    (inside / "a" / "new").touch()
    assert not reads.hold()
    with recorded() as reads:
        record(inside / "out")
    (outside / "newer").touch()
    assert not reads.hold(), "a folder that is named itself may be a link"


def test_relative_paths_start_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = remembered(2)(content)
    for name in (b"a", b"b"):
        (tmp_path / name.decode()).mkdir()
        monkeypatch.chdir(tmp_path / name.decode())
        Path("f").write_bytes(name)
        assert load(Path("f")) == name


def test_a_relative_folder_is_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with recorded() as reads:
        record(Path("data"))
    assert reads.hold()
    (tmp_path / "data" / "two").mkdir()
    assert not reads.hold()


def test_only_the_last_results_are_kept(tmp_path: Path) -> None:
    calls = list[int]()
    load = remembered(2)(calls.append)
    for number in (1, 2, 1, 3, 1, 2):
        load(number)
    assert calls == [1, 2, 3, 2]


def test_arrays_are_known_by_type_shape_and_bytes() -> None:
    zeros = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros(4, np.int64), None,
             np.array(["0"] * 4), np.array(["0"] * 4, dtype=object), [-0.0, 0, 0, 0]]  # fmt: skip
    digests = [of_arrays("a", {"x": each})["a: x"] for each in zeros]
    assert len({*digests}) == len(zeros)
    assert of_arrays("a", {"x": np.zeros((4, 4)).T[::2]}) == of_arrays("a", {"x": np.zeros((2, 4))})


def test_the_cache_on_the_disk_is_of_the_bytes(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("f", "g")]
    made = list[int]()

    def value(settings: str = "1", during: bytes = b"") -> int:
        def make() -> dict[str, np.ndarray]:
            made.append(1)
            if during:
                rewrite(files[0], during)
            return {"sum": np.array(sum(int(file.read_bytes()) for file in files))}

        with recorded() as reads:
            result = int(cached(tmp_path, "c", files, settings, make)["sum"])
        assert reads.files(tmp_path).keys() == {"f", "g"}, "whether it was cached or not"
        return result

    for file in files:
        file.write_bytes(b"1")
    assert value() == value() == 2
    rewrite(files[1], b"5")
    assert value() == value() == 6
    assert len(made) == 2
    value("2")
    (tmp_path / "cache" / "c.npz").write_bytes(b"damaged")
    value("2")
    assert len(made) == 4
    with pytest.raises(DataError, match="the files of c changed while they were read: run again"):
        value("3", during=b"7")
