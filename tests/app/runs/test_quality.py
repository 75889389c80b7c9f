"""quality.csv: what is written is read, and damaged files are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.app.runs import quality
from coterie.app.runs.files import ResultsError
from coterie.datasets.quality import FILE, ColumnQuality

AGE = ColumnQuality(
    0, "=age", "number", 40, 0.25, 12, 20.0, 50.5, 90.0, 51.25, 9.5, math.nan, math.nan, math.inf
)
LAB = replace(AGE, peer=2, column="chol", code=0.0, code_share=0.5, drift=math.nan)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    quality.write(tmp_path, [AGE, LAB], ("north", "south", "+west"))
    read = quality.read(tmp_path, 3)
    assert list(map(repr, read)) == list(map(repr, [AGE, LAB]))  # NaN is not equal to NaN
    text = (tmp_path / FILE).read_text()
    assert "'=age" in text, "no formula of a spreadsheet"
    assert "'+west" in text
    assert "chol is 0 in 50 % of the rows" in text


def test_leaks_and_tables_of_earlier_versions_are_read(tmp_path: Path) -> None:
    leaky = replace(AGE, alone=0.99, leak="age alone predicts the label")
    rows = ColumnQuality(2, "(rows)", "rows", 40, 0.5, 30, leak="4 of 40 rows are copies")
    quality.write(tmp_path, [leaky, rows, LAB])
    assert list(map(repr, quality.read(tmp_path, 3))) == list(map(repr, [leaky, rows, LAB]))
    file = tmp_path / FILE
    lines = [line.split(",") for line in file.read_text().splitlines()]
    gone = lines[0].index("alone")
    file.write_text("\n".join(",".join(cells[:gone] + cells[gone + 1 :]) for cells in lines))
    assert [each.finding for each in quality.read(tmp_path, 3)] == [
        leaky.leak, rows.leak, LAB.finding,
    ]  # fmt: skip


def test_no_columns_no_file(tmp_path: Path) -> None:
    quality.write(tmp_path, [])
    assert not [*tmp_path.iterdir()]
    assert quality.read(tmp_path, 3) == []


@pytest.mark.parametrize(
    "damage",
    [
        ("0.25", "many"), ("0.25", "nan"), ("\n0,", "\n7,"), ("peer,", "pear,"), (",40,", ",4e1,"),
        (",40,", "," + "9" * 5000 + ","), ("number", 'num"ber\x00'),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(damage: tuple[str, str], tmp_path: Path) -> None:
    quality.write(tmp_path, [AGE], ("north",))
    file = tmp_path / FILE
    file.write_text(file.read_text().replace(*damage))
    with pytest.raises(ResultsError, match=r"quality\.csv: not a table of"):
        quality.read(tmp_path, 3)
