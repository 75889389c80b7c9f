"""Federated clustering: the published clipped mean, a plain loop, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.clients.methods.federated_clustering import FederatedClustering, clipped_mean
from tests.inline import Floats, run
from tests.kit import CAMP, D, N, Plain, camps, rule_of
from tests.problems import write_quadratic


def centre(z: Floats, first: int, quantile: float, iterations: int) -> Floats:
    """Run Threshold-Clustering with vectors, as in the paper and CoBo's code."""
    v = z[first].copy()
    for _ in range(iterations):
        distances = np.linalg.norm(z - v, axis=1)
        tau = np.quantile(distances, quantile)
        v = np.mean([point if r <= tau else v for point, r in zip(z, distances, strict=True)], 0)
    return np.asarray(v)


@pytest.mark.parametrize("seed", range(6))
def test_the_weights_give_the_published_centre(seed: int) -> None:
    g = np.random.default_rng(seed)
    z, first = g.normal(size=(9, 4)) + 3 * g.integers(2, size=(9, 1)), int(g.integers(9))
    for quantile in (0.2, 0.5, 0.55, 0.93):
        a = clipped_mean(z @ z.T, first, quantile * 8, 10)
        assert a.sum() == pytest.approx(1, abs=1e-14)
        assert (a >= 0).all()
        assert np.abs(a @ z - centre(z, first, quantile, 10)).max() < 1e-12


def test_equal_distances_are_on_the_same_side() -> None:
    """Six points at distance 1 from the peer's own: rounding must not choose among them."""
    g = np.random.default_rng(0)
    directions = np.linalg.qr(g.normal(size=(6, 6)))[0]
    z = np.vstack([np.zeros(6), directions, 5 * directions]) + g.normal(size=6)
    a = clipped_mean(z @ z.T, 0, 1.0, 1)
    assert np.allclose(a[:7], [7 / 13, *[1 / 13] * 6], atol=1e-15)
    assert (a[7:] == 0).all()


def twin(flat: dict[str, Any], quantile: float) -> Floats:
    q = Plain(flat)
    x = q.start.copy()
    for _ in range(q.rounds):
        start, x = x, x.copy()
        for i in range(q.n):
            authors = np.flatnonzero(q.heard[i])
            z = np.array([q.a[j] * (start[i] - q.c[j]) for j in authors])
            v = centre(z, int(np.flatnonzero(authors == i)[0]), quantile, 10)
            for _ in range(q.steps):
                g = v + q.a[i] * (x[i] - start[i])  # v + g_i(x) - g_i(x0)
                q.velocity[i] = q.momentum * q.velocity[i] + g
                x[i] = x[i] - q.eta * q.velocity[i]
    return x


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("steps", [1, 3])
def test_it_equals_a_plain_loop(tmp_path: Path, steps: int, topology: str, nodes: int) -> None:
    options = {"federated-clustering.quantile": 0.5, "topology": topology, "local-steps": steps}
    flat = camps(tmp_path, "federated-clustering", **options)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - twin(flat, 0.5)).max() < 1e-10
    assert np.allclose(result.weights().sum(axis=1), 1, atol=1e-14)
    assert np.count_nonzero(result.weights()) > N


def alike(directory: Path, method: str, **more: Any) -> dict[str, Any]:
    """Make peers of equal size that take one step per round."""
    g = np.random.default_rng(1)
    directory.mkdir(exist_ok=True)
    flat: dict[str, Any] = write_quadratic(
        directory / "alike.json", g.uniform(0.5, 1.5, (N, D)), g.normal(size=(N, D)), np.zeros(D)
    )
    return flat | {
        "method": method, "num-server-rounds": 8, "local-steps": 1, "learning-rate": 0.2,
        "momentum": 0.5, **more,
    }  # fmt: skip


def test_a_ball_that_holds_everybody_is_fedavg(tmp_path: Path) -> None:
    """x - eta mean_j g_j(x) is the mean of the x - eta g_j(x) where all peers hold one model."""
    everybody = {"federated-clustering.quantile": 1.0}
    result = run(alike(tmp_path / "a", "federated-clustering", **everybody), tmp_path / "a")
    fedavg = run(alike(tmp_path / "b", "fedavg"), tmp_path / "b")
    assert np.abs(result.theta() - fedavg.theta()).max() < 1e-14
    assert np.allclose(result.weights(), 1 / N, atol=1e-15)


def test_a_ball_that_holds_nobody_else_is_local_training(tmp_path: Path) -> None:
    nobody = {"federated-clustering.quantile": 0.0}
    result = run(alike(tmp_path / "a", "federated-clustering", **nobody), tmp_path / "a")
    local = run(alike(tmp_path / "b", "local"), tmp_path / "b")
    assert np.abs(result.theta() - local.theta()).max() < 1e-14
    assert np.array_equal(result.weights(), np.eye(N))


def test_far_camps_are_told_apart(tmp_path: Path) -> None:
    """Half of the peers are alike, and the 0.4 quantile of six distances is the third."""
    flat = camps(tmp_path, "federated-clustering", **{"federated-clustering.quantile": 0.4})
    weights = run(flat | {"num-server-rounds": 2}, tmp_path).weights()
    same = CAMP[:, None] == CAMP
    assert (weights[same] > 0.2).all()
    assert np.abs(weights[~same]).max() == 0


def test_everybody_asks_everybody(tmp_path: Path) -> None:
    rule = rule_of(FederatedClustering(), camps(tmp_path, "federated-clustering"), [1, 4])
    asked = set(map(tuple, rule.edges(rule.wants(rule.init(), 1)).tolist()))
    assert asked == {(i, k) for i in (1, 4) for k in range(6) if k != i}
