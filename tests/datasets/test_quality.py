"""Quality of the peers' columns: gaps, coded values, constants, drift."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of as problem_of_run
from coterie.datasets.partition.options import Partition
from coterie.datasets.preprocessing import Column, RawTable
from coterie.datasets.problem import Problem, Split
from coterie.datasets.quality import ColumnQuality, remedy, shortened, survey, warnings
from coterie.datasets.table import dataset_of

Cells = npt.NDArray[np.float64]


def problem_of(columns: list[Column], *cells_p: Cells) -> Problem:
    """Peers with these rows; the first half trains, the rest tests."""
    ends = np.cumsum([0, *map(len, cells_p)])
    rows_p = [np.arange(a, b) for a, b in pairwise(ends)]
    targets = [np.zeros(len(rows), dtype=np.int64) for rows in rows_p]
    halves = [np.array_split(np.arange(len(rows)), 2) for rows in rows_p]
    train, test = (
        Split(
            tuple(rows[half[k]] for rows, half in zip(rows_p, halves, strict=True)),
            tuple(labels[half[k]] for labels, half in zip(targets, halves, strict=True)),
        )
        for k in (0, 1)
    )
    cells = np.concatenate(cells_p)
    empty = tuple(np.empty(0, dtype=np.int64) for _ in cells_p)
    return Problem(
        "table", "classification", np.nan_to_num(cells), train, Split(empty, empty), test, 2,
        np.zeros(()), np.ones(()), train.sizes, table=RawTable(tuple(columns), cells),
    )  # fmt: skip


def surveyed(values: list[float], *others: list[float]) -> ColumnQuality:
    """Quality of one column of numbers at the first peer."""
    cells_p = [np.array(column, dtype=np.float64)[:, None] for column in (values, *others)]
    return survey(problem_of([Column("x")], *cells_p))[0]


def hospitals() -> list[ColumnQuality]:
    partition = Partition(kind="natural", samples_per_peer=0)
    return survey(dataset_of("heart-disease").load(partition, 4, 0, Path("nowhere"), None))


def test_switzerland_did_not_measure_cholesterol() -> None:
    """The published files: 123 of 123 in Switzerland and 49 of 200 at Long Beach are 0.

    Of the patients whose other values are known, 46 of 46 and 33 of 130.
    """
    coded = {(each.peer, each.column): each for each in hospitals() if not np.isnan(each.code)}
    assert set(coded) == {(2, "chol"), (3, "chol")}
    assert (coded[2, "chol"].rows, coded[2, "chol"].code_share) == (46, 1.0)
    assert coded[3, "chol"].code_share == pytest.approx(33 / 130)
    names = ("cleveland", "hungarian", "switzerland", "va")
    first, second = warnings(hospitals(), names, "heart-disease")
    assert first == (
        "switzerland: chol is 0 in 100 % of the rows; 0 may mean 'not measured'; to count it as "
        "missing, train on the tables of these hospitals, with table.na-values: coterie data fetch "
        "heart-disease"
    )
    assert "chol" in second


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([0, 0, 180, 190, 200, 210, 220], 0.0),
        ([0, 1, 1, 1, 1, 1, 1, 0], None),  # a yes or no
        ([0, 0, 0, 1, 2, 3, 4, 5, 6], None),  # zero belongs to the others
        ([0, 0, 0, 0, 0.5, 1.5, 2.5, 6.2, -2.6], None),  # ST depression
        ([0, 180, 190, 200, 210, 220, 230], None),  # one outlier is no code
        ([0, 0, 180, 180, 200, 200], None),  # too few values to compare with
    ],
)
def test_a_code_is_frequent_and_far_from_all_other_values(
    values: list[float], code: float | None
) -> None:
    quality = surveyed(values).code
    assert np.isnan(quality) if code is None else quality == code


@pytest.mark.parametrize("code", [-1, -9, -99, -999, -9999, 0, 99, 999, 9999])
def test_each_usual_code_is_known(code: float) -> None:
    assert surveyed([code, code, 18, 19, 20, 21, 22]).code == code


def test_a_code_is_found_by_the_values_of_other_peers() -> None:
    assert surveyed([0, 0, 0, 0], [180, 190, 200, 210, 220]).code == 0
    assert np.isnan(surveyed([0, 0, 0, 0]).code), "alone it is a constant"


def test_numbers_of_a_column() -> None:
    column = surveyed([np.nan, 1, 2, 4, 4, np.nan, np.nan, 5])
    assert (column.rows, column.missing, column.distinct) == (8, 3 / 8, 4)
    assert (column.low, column.median, column.high) == (1, 4, 5)
    assert (column.mean, column.std) == pytest.approx((3.2, np.std([1, 2, 4, 4, 5])))
    assert np.isnan(column.drift), "there is no other peer"
    assert not column.finding


def test_an_even_number_of_values_has_the_mean_of_two_as_median() -> None:
    assert surveyed([4, 1, np.nan, 2, 3]).median == 2.5


@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ([np.nan] * 96 + [1, 2, 3, 4], "x is missing in 96 % of the rows"),
        ([np.nan] * 4, "x is missing in 100 % of the rows"),
        ([7.0] * 4, "x has the same value in all rows"),
        ([1, 2, 3, 4, 5, 6], ""),
    ],
)
def test_findings(values: list[float], finding: str) -> None:
    assert surveyed(values).finding == finding


def test_drift_is_the_standardised_mean_difference() -> None:
    g = np.random.default_rng(0)
    one, two, three = g.normal(60, 10, 40), g.normal(45, 5, 30), g.normal(50, 8, 20)
    rest = np.concatenate([two, three])
    derived = abs(one.mean() - rest.mean()) / np.sqrt((one.var() + rest.var()) / 2)
    column = surveyed(one.tolist(), two.tolist(), three.tolist())
    assert column.drift == pytest.approx(derived)
    assert column.finding == f"x differs from the other peers by {derived:.1f} standard deviations"


def test_drift_of_a_category_is_that_of_its_most_different_value() -> None:
    column = Column("sex", "category", ("f", "m"))
    one, other = np.array([[0.0], [0], [0], [1], [np.nan]]), np.array([[0.0], [1], [1], [1]])
    quality = survey(problem_of([column], one, other))[0]
    share, rest = 0.75, 0.25  # without the missing one
    assert quality.drift == pytest.approx(
        abs(share - rest) / np.sqrt((share * (1 - share) + rest * (1 - rest)) / 2)
    )
    assert np.isnan(quality.median)


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, -3.0])
def test_equal_constants_do_not_drift(value: float) -> None:
    """Rounding in the sums must not be divided by a variance of zero."""
    assert surveyed([value] * 7, [value] * 11, [value] * 3).drift == 0


def test_two_constants_drift_without_bound() -> None:
    assert np.isinf(surveyed([1.0] * 4, [2.0] * 4).drift)


def test_all_rows_of_a_peer_count_and_only_those() -> None:
    problem = problem_of([Column("x")], np.full((6, 1), np.nan), np.arange(6.0)[:, None])
    gaps = {each.peer: each.missing for each in survey(problem)}
    assert gaps == {0: 1.0, 1: 0.0}
    assert [each.peer for each in survey(problem, [1])] == [1]


def test_data_without_named_columns_have_no_quality() -> None:
    assert survey(dataset_of("digits").load(Partition(), 8, 0, Path("nowhere"), None)) == []


def test_leaks_are_found_in_the_rows_of_a_run() -> None:
    """All parts in the order of the files; a test file of its own begins at 1 again."""
    g = np.random.default_rng(0)
    columns = [Column("n"), Column("age"), Column("late")]
    problem = problem_of(columns, *(np.column_stack([
        np.arange(60), g.normal(50, 9, 60), g.permutation(60) % 2,
    ]) for _ in range(4)))  # fmt: skip
    rows = problem.train.rows, problem.test.rows
    targets = [tuple(problem.table.cells[r, 2].astype(int) for r in part) for part in rows]  # type: ignore[union-attr]
    parts = [Split(r, t) for r, t in zip(rows, targets, strict=True)]
    problem = replace(problem, train=parts[0], test=parts[1])
    found = {(each.peer, each.column): each.finding for each in survey(problem) if each.finding}
    assert {column for _, column in found} == {"n", "late"}
    assert not [each for each in survey(problem, for_leaks=False) if each.finding]
    names = ("a", "b", "c", "d")
    first, second = warnings(survey(problem), names, "table")
    assert first.startswith("a, b, 2 others: late alone predicts the label (AUROC 1.00): if")
    assert second == "a, b, 2 others: n numbers the rows: leave it out of table.columns"
    cells = problem.table.cells.copy()  # type: ignore[union-attr]
    for r in problem.test.rows:
        cells[r, 0] = np.arange(30)
    for own in (True, False):
        divided = replace(problem, table=RawTable(tuple(columns), cells), own_test=(own,) * 4)
        numbers = {each.column for each in survey(divided) if "numbers" in each.finding}
        assert numbers == ({"n"} if own else set())


def test_nothing_to_warn_about() -> None:
    assert warnings([surveyed([1, 2, 3, 4])], (), "table") == []


def test_huge_numbers_are_no_error() -> None:
    column = surveyed([1e300, -1e300, 1e308, 3.0], [1.0, 2.0])
    assert column.high == 1e308


def test_of_very_many_columns_those_with_findings_remain() -> None:
    sound, empty, constant = map(surveyed, ([1.0, 2.0, 3.0], [np.nan] * 3, [7.0] * 3))
    assert shortened([sound, constant, empty], 3) == [sound, constant, empty]
    assert [each.finding for each in shortened([sound, constant, sound, empty], 3)] == [
        empty.finding, constant.finding,
    ]  # fmt: skip


def test_the_remedy_for_a_coded_value_is_one_of_its_source(tmp_path: Path) -> None:
    """The keys and the schema that it names make the finding go away."""
    cells = ["chol", *["0"] * 10, *map(str, range(180, 220)), ""]
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        rows = [f"{cell},{k % 2}" for k, cell in enumerate(cells[1:-1])]
        (tmp_path / name / "data.csv").write_text("\n".join(["chol,ill", *rows, ""]))
    keys: dict[str, Any] = {
        "dataset": "table", "data-dir": str(tmp_path), "peers": 2, "method": "local",
        "table.columns": "all", "table.label": "ill", "table.classes": "0, 1",
    }  # fmt: skip
    coded = survey(problem_of_run(Config.from_flat(keys)))
    assert remedy(coded, "table") == (
        'to count it as missing, add "chol=0" to table.na-values, with table.missing = "mean"'
    )
    better = {"table.na-values": "chol=0", "table.missing": "mean"}
    assert not remedy(survey(problem_of_run(Config.from_flat(keys | better))), "table")
    assert remedy(coded, "schema") == (
        'to count it as missing, add "0" to na-values of [columns.chol] in schema.toml'
    )
    chol = '[columns.chol]\nna-values = ["0"]\n'
    ill = '[columns.ill]\nkind = "category"\ncategories = ["0", "1"]\n'
    (tmp_path / "schema.toml").write_text(chol + ill)
    better = {"table.schema": "file", "table.missing": "mean"}
    assert not remedy(survey(problem_of_run(Config.from_flat(keys | better))), "schema")
    assert not remedy(coded, "a_plugin:DATA")
