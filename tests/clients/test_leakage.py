"""Leakage: the laws of the measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, mannwhitneyu, norm

from coterie.clients import leakage
from coterie.clients.letters import Floats, Ints

RUNS = 400
LEAST = int(binom.ppf(1e-4, RUNS, 0.94))
"""Number of covering intervals that a coverage of 94 % or more falls short of once in 10,000."""


def drawn(
    g: np.random.Generator, units: int, visits: int, shift: float
) -> tuple[Floats, Ints, Ints]:
    """Draw evidence, classes and groups of examples; the class decides most of the evidence."""
    of_n = np.repeat(np.arange(units), visits)
    classes_n = g.integers(0, 3, units)[of_n]
    evidence_n = shift + g.normal(size=units)[of_n] + 0.1 * g.normal(size=len(of_n))
    return evidence_n + 2 * classes_n, classes_n, of_n


@pytest.mark.parametrize("visits", [1, 4])
@pytest.mark.parametrize("sizes", [(20, 20), (100, 30)])
def test_where_nothing_can_be_learnt_the_intervals_cover_a_coin(
    visits: int, sizes: tuple[int, int]
) -> None:
    """Members and others are exchangeable: 95 of 100 intervals cover 0.5."""
    g, covers = np.random.default_rng(visits), dict.fromkeys(("threshold", "ratio"), 0)
    for _ in range(RUNS):
        parts = zip(*(drawn(g, units, visits, 0.0) for units in sizes), strict=True)
        measured = leakage.membership(*parts)
        assert (measured["members"], measured["held_out"]) == sizes
        for attack in covers:
            _, low, high = measured[attack]["auc"]
            covers[attack] += low <= 0.5 <= high
    assert min(covers.values()) >= LEAST
    assert max(covers.values()) <= binom.ppf(1 - 1e-4, RUNS, 0.97)


def test_rows_of_few_patients_would_be_too_certain() -> None:
    """Counted as rows, the intervals miss a coin far more often."""
    g, covers = np.random.default_rng(0), 0
    for _ in range(RUNS):
        (one, _, _), (other, _, _) = (drawn(g, 30, 6, 0.0) for _ in range(2))
        _, low, high = leakage.auc(one, other)
        covers += low <= 0.5 <= high
    assert covers < LEAST * 0.75


def test_a_model_that_memorises_is_near_one() -> None:
    losses = np.full(50, 1e-9), np.full(60, 3.0)
    evidence = [leakage.evidence(each, bounded=True) for each in losses]
    groups = [np.arange(50), np.arange(60)]
    classes = [0 * each for each in groups]
    measured = leakage.membership(evidence, classes, groups)
    for attack in ("threshold", "ratio"):
        value, low, high = measured[attack]["auc"]
        assert value == high == 1
        assert low > 0.95


def test_the_ratio_knows_that_classes_differ() -> None:
    """Evidence that the class decides hides members from one threshold for all."""
    g = np.random.default_rng(3)
    parts: Any = zip(drawn(g, 400, 1, 1.0), drawn(g, 400, 1, 0.0), strict=True)
    measured = leakage.membership(*parts)
    truth = norm.cdf(1 / np.sqrt(2))
    _, low, high = measured["ratio"]["auc"]
    assert low <= truth <= high
    assert measured["threshold"]["auc"][2] < low


def test_at_a_coin_the_interval_is_the_test_of_mann_and_whitney() -> None:
    """It excludes 0.5 exactly where the normal approximation rejects at 5 %."""
    g, rejections = np.random.default_rng(4), 0
    for _ in range(300):
        one, other = g.normal(0.25, 1, 40), g.normal(size=60)
        _, low, high = leakage.auc(one, other)
        test = mannwhitneyu(one, other, method="asymptotic", use_continuity=False)
        assert (test.pvalue < 0.05) == (not low <= 0.5 <= high)
        rejections += test.pvalue < 0.05
    assert 30 < rejections < 270


def test_true_positives_at_one_percent() -> None:
    others = np.arange(200.0)
    value, low, high = leakage.found(np.array([197.5, 198.5, 1e9, 0]), others) or [0.0] * 3
    assert value == 0.75  # two of the others are taken for members
    assert low < value < high
    assert leakage.found(others, others[:99]) is None


def test_the_evidence_is_the_log_odds_of_the_label() -> None:
    p = np.array([0.1, 0.5, 0.999])
    assert leakage.evidence(-np.log(p), bounded=True) == pytest.approx(np.log(p / (1 - p)))
    assert np.isfinite(leakage.evidence(np.array([0.0, 1e9]), bounded=True)).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_model_without_losses_is_not_measured(wrong: float) -> None:
    whole, of = np.zeros(9), np.arange(9)
    assert leakage.membership([whole + wrong, whole], [of, of], [of, of]) == {}
    assert leakage.membership([whole, whole[:0]], [of, of[:0]], [of, of[:0]]) == {}


def test_a_gradient_of_one_row_contains_it() -> None:
    """Two rows give their mean; if one unit sees one row only, that row again."""
    g = np.random.default_rng(5)
    rows, out = g.normal(size=(40, 6)), g.normal(size=(40, 3))
    none = leakage.readable(out[:2].T @ rows[:2], out[:2].sum(axis=0), rows, None)
    one = leakage.readable(np.outer(out[7], rows[7]), out[7], rows, None)
    out[1, 0] = 0
    unit = leakage.readable(out[:2].T @ rows[:2], out[:2].sum(axis=0), rows, None)
    assert (none, one, unit) == (0, 1, 1)
    assert leakage.readable(np.zeros((3, 6)), np.zeros(3), rows, None) == 0


def test_patients_behind_a_column() -> None:
    rows = np.array([[0, 1.0], [0, 1], [5, 2], [5, 3], [0, 4]])
    assert leakage.differing(rows).tolist() == [2, 3]
    assert leakage.differing(rows, np.array([0, 0, 1, 1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("columns", [1, 4, 9])
def test_the_columns_of_a_curvature(columns: int) -> None:
    d = 2 * (columns + 1)
    h = np.ones((d, d))
    h[[columns, -1]] = 0
    letter = np.concatenate([np.ones(d), h[np.tril_indices(d)], [1.0, 1.0]])
    assert leakage.curved(letter, columns).tolist() == [True] * (columns - 1) + [False]
    assert not leakage.curved(letter[1:], columns).any()
