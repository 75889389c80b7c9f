"""Robust aggregation: against plain loops and byzfl, breakdown points, and where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coterie.clients.defence import Defence
from coterie.clients.engine import robust
from tests.inline import run
from tests.problems import write_quadratic

Floats = npt.NDArray[np.float64]
RULES = ("clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
USED: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}), ("cobo", {"cobo.rho": 0.3, "cobo.gamma": 1.0}), ("wga", {"wga.alpha": 0.8}),
]  # fmt: skip
CASES = 150  # of each rule; studies.robust_rules tries 10,000 against byzfl


def ours(defence: Defence, x: Floats, w: Floats | None = None, own: Floats | None = None) -> Floats:
    stack = torch.from_numpy(x)
    weights = np.full(len(x), 1 / len(x)) if w is None else w
    centre = None if own is None else torch.from_numpy(own)
    received = robust.Received(np.arange(len(x)), weights, centre)
    result: Floats = robust.aggregated(defence, stack, [received])[0].numpy()
    return result


def distance(a: Floats, b: Floats) -> float:
    return float(((a - b) ** 2).sum() ** 0.5)


def plainly(rule: str, x: Floats, w: Floats, f: int, own: Floats) -> Floats:
    """The definitions, letter by letter and number by number."""
    k, d = x.shape
    result = own
    if rule in ("median", "trimmed-mean"):
        result = np.zeros(d)
        for at in range(d):
            pairs = sorted(zip(x[:, at], w, strict=True), key=lambda pair: pair[0])
            if rule == "trimmed-mean":
                share, below, total = f / k, 0.0, 0.0
                for value, weight in pairs:
                    kept = max(0.0, min(below + weight, 1 - share) - max(below, share))
                    below, total, result[at] = (
                        below + weight,
                        total + kept,
                        result[at] + kept * value,
                    )
                result[at] /= total
                continue
            # the middle of all minimisers of sum w |v - x|
            costs = [sum(q * abs(v - y) for y, q in pairs) for v, _ in pairs]
            best = [
                v for (v, _), cost in zip(pairs, costs, strict=True) if cost < min(costs) + 1e-9
            ]
            result[at] = (min(best) + max(best)) / 2
        return result
    if rule == "clip":
        away = [distance(row, own) for row in x]
        radius = sorted(away)[k - f - 1]
        result = own + sum(
            q * (row - own) * (min(1.0, radius / far) if far else 0.0)
            for q, row, far in zip(w, x, away, strict=True)
        )
    if rule in ("krum", "multi-krum"):
        scores = [sum(sorted(distance(a, b) ** 2 for b in x)[: k - f]) for a in x]
        order = np.argsort(np.round(scores, 9), kind="stable")
        kept = order[:1] if rule == "krum" else order[: k - f]
        result = np.average(x[kept], axis=0, weights=w[kept])
    return result


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "geometric-median"])
def test_rules_are_their_definitions(rule: str) -> None:
    g = np.random.default_rng(RULES.index(rule))
    for _ in range(CASES):
        k, d = int(g.integers(1, 9)), int(g.integers(1, 4))
        # Whole numbers: ties in coordinates and in distances.
        x = g.integers(-2, 3, (k, d)).astype(float) if g.random() < 0.5 else g.normal(size=(k, d))
        tied = rule.endswith("krum") and (x == x.round()).all()
        w = g.integers(1, 4, k).astype(float) if g.random() < 0.5 else np.ones(k)
        w, own, tolerate = w / w.sum(), g.normal(size=d), float(g.choice([0, 0.2, 0.34, 0.49]))
        result = ours(Defence(rule, tolerate), x, w, own)
        expected = plainly(rule, x, w, int(tolerate * k + 1e-9), own)
        if tied:
            result, expected = result.round(9), expected.round(9)
        np.testing.assert_allclose(result, expected, atol=1e-9)


def test_the_geometric_median_is_where_no_step_helps() -> None:
    g = np.random.default_rng(7)
    for _ in range(CASES):
        k, d = int(g.integers(1, 9)), int(g.integers(1, 4))
        x = g.integers(-2, 3, (k, d)).astype(float) if g.random() < 0.5 else g.normal(size=(k, d))
        w = g.uniform(0.1, 1, k)

        def cost(v: Floats, x: Floats = x, w: Floats = w) -> float:
            return float(sum(q * distance(v, row) for q, row in zip(w, x, strict=True)))

        v = ours(Defence("geometric-median"), x, w / w.sum())
        least = cost(v)
        steps = [*np.eye(d), *-np.eye(d), *g.normal(size=(4, d))]
        assert all(cost(v + size * s) > least - 1e-7 for s in steps for size in (1e-3, 0.1))
        assert all(cost(row) > least - 1e-7 for row in x)


@pytest.mark.parametrize("f", [0, 1, 2])
def test_byzfl_finds_the_same(f: int) -> None:
    import byzfl  # loads torchvision, which workers without this test do without

    g, k = np.random.default_rng(f), 7
    theirs = {
        "median": byzfl.Median(), "trimmed-mean": byzfl.TrMean(f), "krum": byzfl.Krum(f),
        "multi-krum": byzfl.MultiKrum(f), "geometric-median": byzfl.GeometricMedian(1e-9, 300),
    }  # fmt: skip
    mixing = byzfl.NNM(f)
    for _ in range(5):
        x = g.normal(size=(k, 4))
        for rule, aggregator in theirs.items():
            for nnm in (False, True):
                result = ours(Defence(rule, (f + 0.5) / k, nnm), x)
                expected = aggregator(mixing(x) if nnm else x)
                np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=rule)


@pytest.mark.parametrize("nnm", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_breakdown(rule: str, nnm: bool) -> None:
    """f lies, wherever they are, move the result no farther than honest letters are apart; a mean
    goes with them, and so do most rules where more than half lie."""
    g = np.random.default_rng(1)
    honest, own = g.normal(size=(7, 3)), np.zeros(3)
    for lie in (1e3, 1e9, -1e9):
        x = np.concatenate([honest, np.full((3, 3), lie)])
        defence = Defence(rule, 0.3, nnm)
        assert np.abs(ours(defence, x, own=own)).max() < 6
        assert np.abs(x.mean(axis=0)).max() > 100
        most = np.concatenate([honest, np.full((8, 3), lie)])
        if rule != "clip":  # clipped letters move no peer that far
            assert np.abs(ours(defence, most)).max() > 100


@pytest.mark.parametrize("rule", RULES)
def test_letters_that_are_not_finite_are_left_out(rule: str) -> None:
    g = np.random.default_rng(2)
    x = g.normal(size=(6, 3))
    bad = np.insert(x, [1, 4], [[np.nan] * 3, [0, np.inf, 0]], axis=0)
    weights = np.full(8, 0.125)
    result = ours(Defence(rule), bad, weights, np.zeros(3))
    np.testing.assert_allclose(result, ours(Defence(rule), x, None, np.zeros(3)))


@pytest.mark.parametrize("rule", RULES)
def test_equal_letters_and_sums(rule: str) -> None:
    """With equal letters every rule returns that letter, times the sum of the weights."""
    x = np.tile([1.0, -2.0], (5, 1))
    result = ours(Defence(rule), x, np.full(5, 0.5), np.array([1.0, -2.0]))
    np.testing.assert_allclose(result, [2.5, -5.0])


def flat(path: Path, **keys: Any) -> dict[str, Any]:
    g = np.random.default_rng(5)
    problem = write_quadratic(
        path / "problem.json", np.ones((6, 2)), g.normal(size=(6, 2)), [0.0, 0.0]
    )
    training = {"local-steps": 1, "learning-rate": 0.5, "num-server-rounds": 3}
    return problem | training | {k.replace("_", "-"): v for k, v in keys.items()}


@pytest.mark.parametrize(
    ("rule", "method", "more"), [(r, *m) for r, m in zip(RULES, 2 * USED, strict=False)]
)
def test_runs_are_defended_wherever_peers_live(
    tmp_path: Path, method: str, more: dict[str, Any], rule: str
) -> None:
    keys = flat(tmp_path, method=method) | more | {"defence.rule": rule, "attack.peers": "5"}
    keys |= {"attack.kind": "scale", "attack.strength": 100.0, "defence.norm": False}
    alone, apart = run(keys, tmp_path / "one"), run(keys, tmp_path / "many", 3)
    np.testing.assert_allclose(alone.theta(), apart.theta(), rtol=1e-10, atol=1e-12)
    assert np.abs(alone.theta()[:5]).max() < 3
    if method != "cobo":  # which has noticed by itself
        lied = run(keys | {"defence.rule": "none"}, tmp_path / "lied").theta()[:5]
        assert np.abs(lied).max() > 3


def test_fedavg_with_a_median_is_by_hand(tmp_path: Path) -> None:
    keys = flat(tmp_path, method="fedavg", num_server_rounds=1) | {"defence.rule": "median"}
    g = np.random.default_rng(5)
    centres = g.normal(size=(6, 2))
    models = run(keys, tmp_path).theta()
    np.testing.assert_allclose(models, np.tile(np.median(0.5 * centres, axis=0), (6, 1)))


def test_the_usual_bound_is_ten_times_the_median_of_those_who_are_there() -> None:
    believed = Defence().believed
    assert believed(np.array([30.0, 1e9, 0.0, 50.0])).tolist() == [30, 500, 0, 50]
    assert believed(np.array([30.0, 1e9])).tolist() == [30, 300], "of two the smaller one"
    assert believed(np.zeros(3)).tolist() == [0, 0, 0]
    for honest in ([303, 294, 123, 200], [1, 2, 3, 4], [7], [20, 200]):
        assert believed(np.array(honest, dtype=float)).tolist() == honest
    assert Defence(max_samples=0).believed(np.array([1.0, 1e9])).tolist() == [1, 1e9]


def test_numbers_of_examples_are_believed_up_to_a_bound(tmp_path: Path) -> None:
    lie = {"attack.kind": "samples", "attack.peers": "0"}
    keys = flat(tmp_path, method="fedavg", num_server_rounds=1) | lie
    centres = np.random.default_rng(5).normal(size=(6, 2))
    taken = run(keys | {"defence.max-samples": 0}, tmp_path / "taken").theta()[3]
    np.testing.assert_allclose(taken, 0.5 * centres[0], atol=0.02)
    usual = run(keys, tmp_path / "usual").theta()[3]  # ten times the others' number of 1
    np.testing.assert_allclose(usual, 0.5 * (10 * centres[0] + centres[1:].sum(axis=0)) / 15)
    bounded = run(keys | {"defence.max-samples": 1}, tmp_path / "bounded").theta()[3]
    np.testing.assert_allclose(bounded, 0.5 * centres.mean(axis=0))
