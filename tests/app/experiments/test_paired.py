"""Paired test: values computed by hand, and the false-positive rate on noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from coterie.app.experiments import paired
from coterie.app.experiments.paired import (
    LEVEL,
    MAX_SEEDS,
    holm,
    interval,
    leaders,
    p_value,
    seeds_needed,
)
from coterie.app.runs.rundir import Run
from tests.app.fake_run import Story, write_run


def test_the_test_by_hand() -> None:
    """Means 1, 2, 3: variance 1 over seeds, t = 2 / sqrt(1 / 3); small variance over peers."""
    differences = [np.array([m - 0.1, m + 0.1]) for m in (1.0, 2.0, 3.0)]
    assert p_value(differences) == pytest.approx(2 * stats.t.sf(2 * np.sqrt(3), 2))
    assert p_value(differences) == pytest.approx(stats.ttest_1samp([1, 2, 3], 0).pvalue)


def test_seeds_that_agree_by_chance_prove_nothing_where_peers_differ() -> None:
    """All means are 1; what counts is the peers' variance, 8 / 4 each: t = 1 / sqrt(2 / 3)."""
    peers = np.array([-1.0, 3.0, 3.0, -1.0]) * np.sqrt(1.5)  # mean sqrt(1.5), variance 8
    peers = peers - peers.mean() + 1.0
    assert peers.var(ddof=1) == pytest.approx(8.0)
    seeds = [peers, peers[::-1], peers]
    assert p_value(seeds) == pytest.approx(2 * stats.t.sf(1 / np.sqrt(2 / 3), 2))


def test_a_peer_without_a_value_is_left_out() -> None:
    with_nan = [np.array([1.0, np.nan, 1.2]), np.array([2.0, 2.2, np.nan]), np.array([3.0, 1.0])]
    without = [np.array([1.0, 1.2]), np.array([2.0, 2.2]), np.array([3.0, 1.0])]
    assert p_value(with_nan) == p_value(without) < 1


def test_fewer_than_three_seeds_allow_no_test() -> None:
    apart = [np.array([5.0, 5.1, 5.2])] * 2
    assert p_value(apart) == p_value(apart[:1]) == 1.0
    assert p_value([np.array([5.0])] * 3) == 1.0, "no spread, nothing to judge by"
    assert p_value([*apart, np.array([np.nan])]) == 1.0
    assert p_value([*apart, apart[0] + 0.1]) < 0.01
    assert p_value([np.ones(4)] * 3) == 0.0, "all peers differ by the same amount"
    assert p_value([np.zeros(4)] * 3) == 1.0


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 34), (0.8, 15), (1.0, 10), (1.5, 6)])
def test_seeds_needed_are_those_of_power_tables(effect: float, seeds: int) -> None:
    """Paired t-test, two-sided 0.05, power 0.8: sample sizes as G*Power 3.1 gives them."""
    differences = [np.array([effect + x]) for x in (-1.0, 0.0, 1.0)]  # standard deviation 1
    assert seeds_needed(differences) == seeds
    assert seeds_needed([-d for d in differences]) == seeds
    assert (seeds_needed(differences, tests=4) or MAX_SEEDS) > seeds


def test_too_many_seeds_and_too_little_data_give_no_number() -> None:
    assert seeds_needed([np.array([0.1 + x]) for x in (-1.0, 0.0, 1.0)]) is None, MAX_SEEDS
    assert seeds_needed([np.array([5.0])] * 2) is None
    assert seeds_needed([np.array([5.0])] * 3) is None, "no spread"
    assert seeds_needed([np.ones(4)] * 3) == 3


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_leaders_are_the_best_and_those_not_shown_to_be_worse() -> None:
    def seeds(*means: float) -> dict[object, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        return {s: mean + np.array([-0.1, 0.1]) for s, mean in enumerate(means)}

    values = {"low": seeds(1.0, 2.0, 3.0), "top": seeds(8.1, 9.0, 10.1), "next": seeds(8, 9.1, 10)}
    assert leaders(values) == ["top", "next"]
    assert leaders({"low": values["low"]}) == ["low"]
    assert leaders(values | {"new": {7: np.array([8.0])}}) == ["top", "next", "new"], (
        "no seed shared"
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_methods_rarely_have_a_winner(seeds: int) -> None:
    """Peers of a seed are correlated: with peers as the unit, every third test would win."""
    rng = np.random.default_rng(0)
    wins = 0
    for _ in range(400):
        values = {
            str(m): {s: rng.normal() + 0.5 * rng.normal(size=8) for s in range(seeds)}
            for m in range(3)
        }
        wins += len(leaders(values)) == 1
    assert wins / 400 <= 0.05


def test_divisions_of_the_same_rows_need_the_correction() -> None:
    """Two methods of equal expected error: least squares on the first or the second column.

    200 data sets, ten divisions of each. Taken as independent, the divisions would give a fifth of
    the data sets a winner.
    """
    rng = np.random.default_rng(0)
    rows, test, peers, seeds = 30, 9, 4, 10
    wins = {0.0: 0, test / (rows - test): 0}
    for _ in range(200):
        x_pcn = rng.normal(size=(peers, 2, rows))
        y_p1n = x_pcn.sum(axis=1, keepdims=True) + rng.normal(size=(peers, 1, rows))
        differences = []
        for _ in range(seeds):
            held, fit = np.split(rng.permutation(rows), [test])
            x_fit, y_fit = x_pcn[..., fit], y_p1n[..., fit]
            slope_pc1 = ((x_fit * y_fit).sum(-1) / (x_fit**2).sum(-1))[..., None]
            error_pc = ((y_p1n[..., held] - slope_pc1 * x_pcn[..., held]) ** 2).mean(-1)
            differences.append(error_pc[:, 0] - error_pc[:, 1])
        for ratio in wins:
            wins[ratio] += p_value(differences, ratio) < LEVEL
    of_plain, of_corrected = wins.values()
    assert of_plain > 30
    assert of_corrected <= 10


def test_only_rows_that_each_seed_divides_again_are_corrected(tmp_path: Path) -> None:
    """20 of 100 rows for testing, 20 for validation; the second peer has 50 test rows in a file."""

    def ratio(name: str, *peers: int, **keys: Any) -> float:
        run = write_run(tmp_path / name, Story(peers=2, rounds=0), **{**table, **keys})
        (run / "split.json").write_text(json.dumps(split))
        return paired.split_ratio(Run.read(run), peers or None)

    table = {"dataset": "table", "table": {"test": 0.2}, "partition": {}, "split-seed": "seed"}
    parts = {"train": 60, "validation": 20, "test": 20}
    split: list[dict[str, Any]]
    split = [{part: {"size": size} for part, size in parts.items()} for _ in range(2)]
    assert ratio("drawn") == pytest.approx(1 / 3)
    assert ratio("kept", **{"split-seed": 0}) == 0
    assert ratio("digits", dataset="digits") == 0
    split[1]["test"] |= {"size": 50, "fixed": True}
    assert ratio("first", 0) == pytest.approx(1 / 3)
    assert ratio("second", 1) == 0
    assert ratio("both") == pytest.approx(1 / 6)


def test_the_interval_has_the_differences_that_the_test_does_not_reject() -> None:
    differences = [np.array([m - 0.1, m + 0.1]) for m in (1.0, 2.0, 3.0)]
    for ratio, tests in ((0.0, 1), (0.5, 1), (0.5, 4)):
        mean, low, high = interval(differences, ratio, tests)
        assert mean == pytest.approx(2.0)
        for end in (low, high):
            at_end = [d_p - end for d_p in differences]
            assert p_value(at_end, ratio) == pytest.approx(LEVEL / tests)
    assert interval([np.array([1.0]), np.array([-1.0]), np.array([0.0])])[0] == 0
    assert np.isnan(interval(differences[:2])[1:]).all(), "no test with two seeds"
