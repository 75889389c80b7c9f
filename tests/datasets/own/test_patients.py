"""Patients with several rows, and time: no patient is in two parts, no row is later than a test."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets.own.institutions import (
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    make_holding,
)
from coterie.datasets.problem import DataError

PARTS = ("train", "validation", "test")
CLASSES = Expected("table", "classification", 2, None, None, ("no", "yes"))


def held(
    groups: Any = None, times: Any = None, rows: int = 60, seed: int = 0, **options: Any
) -> Holding:
    """Divide the rows of one institution: targets are random classes, the input is the row."""
    targets = np.random.default_rng(1).integers(2, size=rows)
    parts = {"train": (np.arange(rows, dtype=float)[:, None], targets)}
    named = None if groups is None else {"train": np.asarray(groups)}
    shares = HeldOptions(**{"test": 0.2, "validation": 0.2} | options)
    return make_holding(
        CLASSES, parts, shares, seed, 0, by_class=seed % 2 == 0, groups=named, times=times
    )


@given(
    patients=st.lists(st.integers(0, 9), min_size=8, max_size=40),
    hours=st.none() | st.lists(st.integers(0, 6), min_size=40, max_size=40),
    seed=st.integers(0, 3),
    fold=st.integers(0, 4),
    shares=st.sampled_from([(0.2, 0.2), (0.5, 0.0), (0.3, 0.4)]),
    is_grouped=st.booleans(),
)
def test_parts_share_no_patient_and_keep_all_rows(
    patients: list[int], hours: list[int] | None, seed: int, fold: int,
    shares: tuple[float, float], is_grouped: bool,
) -> None:  # fmt: skip
    rows = len(patients)
    times = None if hours is None else np.array(hours[:rows], dtype=float)
    group_n = np.array(patients) if is_grouped else np.arange(rows)
    more = {"fold": fold, "test": shares[0], "validation": shares[1]}
    try:
        holding = held(group_n.astype(str) if is_grouped else None, times, rows, seed, **more)
    except DataError:  # too few patients, or all rows at one time
        assert len(np.unique(group_n)) < 6 or hours is not None
        return
    parts = [holding.rows[part] for part in PARTS]
    for one, other in itertools.combinations(parts, 2):
        assert not np.intersect1d(group_n[one], group_n[other]).size
    kept = np.concatenate(parts)
    assert len(np.unique(kept)) == len(kept)
    if times is None:
        assert len(kept) == rows
        return
    last = -np.inf
    for part in filter(len, parts):
        assert times[part].min() > last
        last = times[part].max()
    for row in np.setdiff1d(np.arange(rows), kept):  # a later visit of an earlier patient
        own = np.flatnonzero(group_n == group_n[row])
        home = next(part for part in parts if own[times[own].argmin()] in part)
        assert times[row] > times[home].max()


def test_patients_of_one_row_are_divided_as_rows_are() -> None:
    names = [f"patient {k}" for k in np.random.default_rng(0).permutation(60)]
    for seed, fold in itertools.product(range(4), range(3)):
        plain, grouped = held(seed=seed, fold=fold), held(names, seed=seed, fold=fold)
        assert all(np.array_equal(plain.rows[part], grouped.rows[part]) for part in PARTS)
        assert plain.inputs.tobytes() == grouped.inputs.tobytes()


def test_each_part_has_the_rare_class_in_proportion_and_folds_are_disjoint() -> None:
    """A tenth of the patients is ill, in one of three visits."""
    patients = np.repeat(np.arange(100), 3)
    ill = (patients % 10 == 0) & (np.arange(300) % 3 == 1)
    parts = {"train": (np.zeros((300, 1)), ill.astype(np.int64))}
    seen = np.zeros(300)
    for fold in range(4):
        shares = HeldOptions(test=0.2, validation=0.2, fold=fold)
        of = {"groups": {"train": patients}, "by_class": True}
        holding = make_holding(CLASSES, parts, shares, 0, 0, **of)  # type: ignore[arg-type]
        assert [int(ill[holding.rows[part]].sum()) for part in PARTS] == [6, 2, 2]
        seen[holding.rows["validation"]] += 1
    seen[holding.rows["test"]] += 1
    assert (seen == 1).all()


def test_a_patient_in_two_files_is_refused_without_the_name() -> None:
    part = np.zeros((3, 1)), np.array([0, 1, 0])
    groups = {"train": np.array(["a", "secret", "b"]), "test": np.array(["c", "secret", "d"])}
    with pytest.raises(RefusedError, match=r"1 groups .* in both train and test: keep") as refused:
        make_holding(CLASSES, {"train": part, "test": part}, HeldOptions(), 0, 0, groups=groups)
    assert "secret" not in str(refused.value)
    assert refused.value.entries == ["secret"]


def test_left_out_visits_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Four of five patients come from day 0 to 29, the fifth from day 15 to 44."""
    times = np.concatenate([*[np.arange(30)] * 4, np.arange(15, 45)]).astype(float)
    held(np.repeat(list("abcde"), 30), times, rows=150, validation=0.0)
    assert "left out 60 of 150 rows of peer 0" in caplog.text
