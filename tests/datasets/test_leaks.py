"""Signs of leaks: what always is one, what never is one, and how rare false alarms are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets.leaks import (
    PREDICTS,
    ROWS,
    File,
    classes_of,
    copied,
    near_equal,
    pattern_of,
    separations,
    signs,
    spelled_alike,
)
from coterie.datasets.preprocessing import Column

Floats = npt.NDArray[np.float64]

TRANSFORMED: dict[str, Callable[[Floats], Floats]] = {
    "falling": lambda y: -3 * y,
    "exponential": np.exp,
    "cubic": lambda y: (y - 1) ** 3,
    "relabelled": lambda y: (7 * y + 3) % 11,
    "zigzag": lambda y: np.abs(y - 1.2),
    "with gaps": lambda y: np.where(y == 0, np.nan, y),
}


def floats(values: npt.NDArray[Any]) -> Floats:
    return values.astype(np.float64)


def labels(kind: str, n: int, g: np.random.Generator) -> npt.NDArray[Any]:
    """Labels as in `Split.targets`, of a survival without the intervals."""
    match kind:
        case "number":
            return g.normal(size=(n, 1))
        case "survival":
            return np.column_stack([g.integers(0, 2, n), g.exponential(size=n)])
    return g.integers(0, int(kind), n)


def noise(n: int, g: np.random.Generator) -> Floats:
    """Columns that know nothing: numbers, counts, categories, ties, gaps, a drift, blocks."""
    values = [
        g.normal(size=n), g.poisson(3, n), g.integers(0, 2, n), g.integers(0, 300, n),
        np.where(g.random(n) < 0.6, np.nan, g.normal(size=n)), np.arange(n) + g.normal(size=n),
        np.repeat(g.normal(size=-(-n // 4)), 4)[:n], g.exponential(size=n).round(1),
    ]  # fmt: skip
    return np.stack(values, axis=1).astype(np.float64)


@pytest.mark.parametrize("kind", ["2", "3", "number", "survival"])
def test_noise_predicts_no_label(kind: str) -> None:
    """Stated: fewer than one of 1,000 columns; of these 1,200 none."""
    alone = []
    for seed in range(150):
        g = np.random.default_rng(seed)
        n = int(g.choice([20, 24, 40, 300]))
        classes = classes_of(labels(kind, n, g))
        alone += [separations(noise(n, g), each) for each in classes]
    assert np.isfinite(alone).sum() > 500
    assert not (np.array(alone) >= PREDICTS).any()


@pytest.mark.parametrize("change", TRANSFORMED)
@pytest.mark.parametrize("k", [2, 3, 6])
def test_a_copy_of_a_class_is_found_and_permuted_labels_silence_it(change: str, k: int) -> None:
    g = np.random.default_rng(k)
    y = g.integers(0, k, 40 * k).astype(np.float64)
    column = TRANSFORMED[change](y)[:, None]
    if change == "zigzag" and k > 3:
        column += 0.01 * (y[:, None] > 1)  # two classes with the same distance
    assert separations(column, y.astype(np.int64)) >= PREDICTS
    assert separations(column, g.permutation(y).astype(np.int64)) < 0.8


@pytest.mark.parametrize("change", ["falling", "exponential", "cubic"])
def test_a_copy_of_a_number_is_found_in_any_unit(change: str) -> None:
    y = np.random.default_rng(0).normal(size=(80, 1))
    (quarters,) = classes_of(y)
    assert separations(TRANSFORMED[change](y), quarters) >= PREDICTS
    noisy = y + np.random.default_rng(1).normal(size=(80, 1))
    assert separations(noisy, quarters) < PREDICTS, "a good predictor"


def test_what_a_range_or_a_gap_tells() -> None:
    g = np.random.default_rng(0)
    x = g.normal(size=2000)
    inside = (np.abs(x) < 1).astype(np.int64)
    assert separations(x[:, None], inside) >= PREDICTS
    classes = g.integers(0, 3, 300)
    died = np.where(classes == 1, g.normal(size=300), np.nan)[:, None]
    assert separations(died, classes) >= PREDICTS, "a date of death"
    few = np.r_[np.zeros(50), np.ones(9)].astype(np.int64)
    assert np.isnan(separations(few[:, None].astype(float), few)), "too few of a class to tell"


def test_rare_classes_and_large_tables_are_judged_by_some_rows() -> None:
    y = np.zeros(200_000, dtype=np.int64)
    y[::10_000] = 1
    x = np.random.default_rng(0).normal(size=len(y))
    assert (separations(np.stack([x, x + 99 * y], axis=1), y) >= PREDICTS).tolist() == [False, True]


@given(
    start=st.integers(-(10**6), 10**6), stride=st.integers(1, 1000), n=st.integers(20, 200),
    sign=st.sampled_from([1, -1]), data=st.data(),
)  # fmt: skip
def test_row_numbers_are_found(start: int, stride: int, n: int, sign: int, data: Any) -> None:
    """Any start and stride, with one number missing, and divided among peers at random."""
    numbers = sign * (start + stride * np.arange(n, dtype=np.float64))
    gone = data.draw(st.integers(0, n - 1)) if n > 20 else n
    for values in (numbers, np.delete(numbers, gone) if gone < n else numbers):
        assert pattern_of(values, Column("x"), values) == "rows"
    pooled = start + np.arange(10.0 * n)
    own = np.sort(np.random.default_rng(n).choice(pooled, n, replace=False))
    assert pattern_of(own, Column("Unnamed: 0"), pooled) == "rows"
    assert pattern_of(own, Column("year"), pooled) == "", "a time may be a feature"


def test_ids_are_told_from_measurements() -> None:
    g = np.random.default_rng(0)
    shuffled, visits = floats(g.permutation(300)), floats(np.repeat(g.permutation(900)[:50], 6))
    records = floats(g.choice(10**8, 300, replace=False))
    assert pattern_of(shuffled, Column("x"), shuffled) == "id"
    assert pattern_of(records, Column("MRN"), records) == "id"
    assert pattern_of(records, Column("sodium"), records) == ""
    assert pattern_of(visits, Column("x"), visits) == "group"
    mixed = g.permutation(visits)
    assert pattern_of(mixed, Column("patient_id"), mixed) == "group"
    assert pattern_of(mixed, Column("x"), mixed) == ""
    texts = Column("PatientID", "category", tuple(map(str, range(900))))
    assert pattern_of(mixed, texts, mixed) == "group"
    for _ in range(200):  # ages, counts, scores, sorted ages, measurements in order
        values = g.choice([g.normal(50, 15, 200), g.poisson(4, 200), g.integers(0, 101, 200)])
        for each in map(floats, (values.round(), np.sort(values.round()), np.sort(values))):
            assert pattern_of(each, Column("x"), each) == ""


def test_copies_are_told_from_rows_that_are_equal_by_chance() -> None:
    g = np.random.default_rng(0)
    for seed in range(100):
        counts = floats(np.random.default_rng(seed).poisson(1, (300, 5)))
        assert not copied([counts])[0].any()
        assert not any(each.any() for each in copied(np.array_split(counts, 3)))
    cells = np.column_stack([g.normal(size=100), g.integers(0, 2, (100, 3)), np.full(100, np.nan)])
    twice = np.r_[cells, cells[:10]]
    assert np.flatnonzero(copied([twice])[0]).tolist() == [*range(10), *range(100, 110)]
    other = np.r_[g.normal(size=(50, 5)), cells[5:25]]
    assert [each.sum() for each in copied([cells, other])] == [20, 20]


@pytest.mark.parametrize(("d", "spread"), [(3, 1e-4), (6, 0.02), (20, 0.2)])
def test_visits_of_patients_are_nearly_equal_rows(d: int, spread: float) -> None:
    for seed in range(10):
        g = np.random.default_rng(seed)
        mixed = g.normal(size=(d, d))
        assert near_equal(g.normal(size=(300, d)) @ mixed) == 0
        assert near_equal(g.lognormal(size=(300, d))) == 0
        visits = np.repeat(g.normal(size=(50, d)), 6, axis=0) + spread * g.normal(size=(300, d))
        assert near_equal(g.permutation(visits)) > 0.5


def test_huge_and_empty_columns_are_no_error() -> None:
    cells = np.outer(np.arange(50), [1e306, -1e306, 0, 1e-320])
    cells = np.column_stack([cells, np.full(50, np.nan)])
    columns = [Column(str(c)) for c in range(5)]
    assert signs({0: File(cells, [np.arange(50) % 2])}, columns)
    assert signs({0: File(cells[:0], [np.arange(0)])}, columns) == {} == signs({}, columns)


def test_findings_name_the_remedy() -> None:
    """Row numbers, ids, the label, copies from training to test rows, shared rows."""
    g = np.random.default_rng(0)
    x, y = g.normal(size=(200, 4)), np.tile([0, 1], 100)
    cells = np.column_stack([np.arange(200), np.repeat(np.arange(40), 5), y * 2 + 1, x])
    cells[150:160, 3:] = cells[:10, 3:]
    columns = [Column(name) for name in ("n", "who", "died", "a", "b", "c", "d")]
    is_test = np.arange(200) >= 150
    found = {
        key: text
        for key, (_, text) in signs({0: File(cells, [y], is_test)}, columns).items()
        if text
    }
    assert found == {
        (0, "n"): "n numbers the rows: leave it out of table.columns",
        (
            0,
            "who",
        ): 'who repeats as an id of patients does: table.group = "who" keeps the rows of a '
        "patient together",
        (0, "died"): "died alone predicts the label (AUROC 1.00): if it is known only afterwards, "
        "leave it out of table.columns",
        (0, ROWS): "20 of 200 rows equal another row (10 test rows a training row): delete copies; "
        "for visits of one patient, set table.group to the column that names the patients",
    }
    files = {0: File(cells[:, 3:]), 3: File(cells[:40, 3:])}
    shared = signs(files, columns[3:])
    assert shared[3, ROWS][1].startswith("40 of 40 rows are at another institution, too: delete")
    dealt = {peer: replace(file, is_own=False) for peer, file in files.items()}
    assert "another institution" not in signs(dealt, columns[3:]).get((3, ROWS), (0, ""))[1]


def test_what_a_group_shares_is_no_finding_where_groups_stay_together() -> None:
    """A label per patient: age tells the patient, and visits are nearly equal, but only then."""
    g = np.random.default_rng(0)
    ages, labels = np.repeat(g.permutation(60)[:40], 8), np.repeat(g.permutation(40) % 2, 8)
    x = np.repeat(g.normal(size=(40, 6)), 8, axis=0) + 0.01 * g.normal(size=(320, 6))
    columns = [Column(name) for name in ("age", "a", "b", "c", "d", "e", "f")]
    file = File(np.column_stack([ages, x]), [labels])
    found = {name for (_, name), (_, text) in signs({0: file}, columns).items() if text}
    assert found == {"age", ROWS}
    grouped = replace(file, group_n=np.repeat(np.arange(40), 8))
    assert not [text for _, text in signs({0: grouped}, columns).values() if text]


@pytest.mark.parametrize(
    ("tables", "groups"),
    [
        ([["Male", "male "], ["male", "Female"]], [["Male", "male", "male "]]),
        ([["non-smoker"], ["non smoker", "smoker"]], [["non smoker", "non-smoker"]]),
        (
            [["gr\u00f6\u00dfer"], ["gro\u0308\u00dfer"]],
            [["gro\u0308\u00dfer", "gr\u00f6\u00dfer"]],
        ),
        ([["F", "M"], ["female", "male"]], [["F", "female"], ["M", "male"]]),
        ([["A", "AB", "B"], ["A", "B"]], []),  # blood groups: one table has both
        ([["A+", "A-", "<5", ">5", "1-2", "12", "1 2"]], []),
        ([["F", "female"]], []),
        ([["S", "M", "L", "XL"], ["no", "yes"]], []),
        (
            [["Female", "Male"], ["female", "male"], ["F", "M"]],
            [["F", "Female", "female"], ["M", "Male", "male"]],
        ),
    ],
)
def test_spellings(tables: list[list[str]], groups: list[list[str]]) -> None:
    names = list(dict.fromkeys(name for names in tables for name in names))
    assert spelled_alike(names, tables) == groups
