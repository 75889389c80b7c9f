"""Fetched sets: a folder per institution, written as a whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.app.lab.catalogue.fetch import ORIGIN, fetch
from coterie.app.lab.catalogue.sets import SETS, File, PublicSet, Tables
from coterie.datasets.own.schema import read_schema
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError

CONTENT = b"a,63,yes\na,41,no\nb,50,no\nb,,yes\n"
COLUMNS = (Column("age", unit="years"), Column("ill", "category", ("no", "yes")))


def split(texts: Sequence[str]) -> Tables:
    rows: dict[str, list[tuple[str, ...]]] = {}
    for line in texts[0].splitlines():
        institution, *cells = line.split(",")
        rows.setdefault(institution, []).append(tuple(cells))
    return Tables(COLUMNS, rows)


def entry_of(content: bytes = CONTENT) -> PublicSet:
    digest = hashlib.sha256(content).hexdigest()
    file = File("https://example.org/patients.csv", digest, len(content))
    return PublicSet("ill or not", 2, "hospitals", 4, "CC0", "nobody", (file,), split)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / "patients.csv").write_bytes(CONTENT)
    return folder


def test_the_tables_are_read_as_the_institutions_own(tmp_path: Path, source: Path) -> None:
    assert fetch("patients", entry_of(), tmp_path / "data", source)
    folder = tmp_path / "data" / "patients"
    assert sorted(path.name for path in folder.iterdir()) == [ORIGIN, "a", "b", "schema.toml"]
    assert (folder / "b" / "data.csv").read_text() == "age,ill\n50,no\n,yes\n"
    assert read_schema(folder / "a") == {column.name: column for column in COLUMNS}
    options = TableOptions(columns="all", label="ill", schema="file", missing="mean", test=0.5)
    for institution in "ab":
        expected, holding = read_table(folder / institution, options, seed=0, peer=0)
        assert expected.classes == ("no", "yes")
        assert len(holding.targets) == 2
    origin = (folder / ORIGIN).read_text()
    assert entry_of().files[0].sha256 in origin
    assert "Licence: CC0." in origin


def test_a_second_fetch_changes_nothing(tmp_path: Path, source: Path) -> None:
    data = tmp_path / "data"
    fetch("patients", entry_of(), data, source)
    (data / "patients" / "a" / "data.csv").write_text("corrected by hand")
    assert not fetch("patients", entry_of(), data, source)
    assert (data / "patients" / "a" / "data.csv").read_text() == "corrected by hand"


def test_a_folder_of_something_else_is_kept(tmp_path: Path, source: Path) -> None:
    """Also one of the same set from other files."""
    mine = tmp_path / "data" / "patients" / "mine.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(DataError, match=r"exists and has other content.*--out"):
            fetch("patients", entry_of(), tmp_path / "data", source)
        (mine.parent / ORIGIN).write_text("# patients of last year")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT.replace(b"63", b"64"), "SHA-256"),
        (CONTENT[:-1], "bytes, expected"),
        (CONTENT * 2, "more than"),
    ],
)
def test_a_changed_file_writes_nothing(
    tmp_path: Path, source: Path, content: bytes, message: str
) -> None:
    (source / "patients.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        fetch("patients", entry_of(), tmp_path / "data", source)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["../b", "/tmp/b", "", ".", ".hidden", "a/b", "b\0", "a\\b"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, source: Path, name: str) -> None:
    """Names of institutions come from the file; a digest does not make a path harmless."""
    content = CONTENT.replace(b"\nb,", b"\n" + name.encode() + b",")
    (source / "patients.csv").write_bytes(content)
    with pytest.raises(DataError, match="cannot be the name of an institution"):
        fetch("patients", entry_of(content), tmp_path / "data", source)
    assert not (tmp_path / "data").exists()


def test_counts_that_differ_from_the_catalogue_are_refused(tmp_path: Path, source: Path) -> None:
    entry = replace(entry_of(), examples=5)
    with pytest.raises(DataError, match="4 rows of 2 hospitals, expected 5 of 2"):
        fetch("patients", entry, tmp_path / "data", source)


def test_a_failed_write_leaves_nothing(tmp_path: Path, source: Path) -> None:
    """The cells of b cannot be encoded: a is written by then, but not in its place."""

    def damaged(texts: Sequence[str]) -> Tables:
        tables = split(texts)
        return Tables(tables.columns, {**tables.rows, "b": [("50", "\ud800"), ("51", "no")]})

    with pytest.raises(UnicodeEncodeError):
        fetch("patients", replace(entry_of(), read=damaged), tmp_path / "data", source)
    assert list((tmp_path / "data").iterdir()) == []


def test_heart_disease_needs_no_source(tmp_path: Path) -> None:
    assert fetch("heart-disease", SETS["heart-disease"], tmp_path)
    assert len((tmp_path / "heart-disease" / "va" / "data.csv").read_text().splitlines()) == 131
