"""Ditto: a plain loop, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.baselines import PEERS, digits, quadratic, quadratics, stacked
from tests.inline import Floats, run


def twin(flat: dict[str, Any], strength: float) -> tuple[Floats, Floats]:
    """Return personal and global models of a plain loop."""
    q, eta, momentum = quadratics(flat), flat["learning-rate"], flat["momentum"]
    w, v = q.start.copy(), q.start.copy()
    pace_w, pace_v = np.zeros_like(w), np.zeros_like(v)
    for _ in range(flat["num-server-rounds"]):
        centre = w.copy()
        for i in range(PEERS):
            for _ in range(flat["local-steps"]):
                pace_w[i] = momentum * pace_w[i] + q.gradient(i, w[i])
                w[i] = w[i] - eta * pace_w[i]
            for _ in range(flat["local-steps"]):
                pace_v[i] = momentum * pace_v[i] + q.gradient(i, v[i])
                pace_v[i] += strength * (v[i] - centre[i])
                v[i] = v[i] - eta * pace_v[i]
        w = q.mean(w)
    return v, w


@pytest.mark.parametrize("nodes", [1, 4])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = quadratic(tmp_path, "ditto", **{"ditto.lambda": 0.7})
    result, (v, w) = run(flat, tmp_path, nodes), twin(flat, 0.7)
    assert np.abs(result.theta() - v).max() < 1e-12
    q = quadratics(flat)
    global_loss = (q.a * (w - q.c) ** 2).sum(axis=1) / 2
    assert np.allclose(result.metric("global_test_loss"), global_loss, rtol=1e-12)
    assert np.abs(v - w).max() > 1e-2


def test_a_free_own_model_is_local_training_and_the_global_one_fedavg(tmp_path: Path) -> None:
    free = run(digits("ditto", **{"ditto.lambda": 0.0}), tmp_path / "ditto")
    assert stacked(free).equal(stacked(run(digits("local"), tmp_path / "local")))
    fedavg = run(digits("fedavg"), tmp_path / "fedavg")
    for score in ("loss", "accuracy"):
        assert np.array_equal(free.metric(f"global_test_{score}"), fedavg.metric(f"test_{score}"))
    assert np.array_equal(
        free.metric("gradient_evaluations"), 2 * fedavg.metric("gradient_evaluations")
    )


def test_a_strong_pull_leaves_the_model_where_the_round_began(tmp_path: Path) -> None:
    """With eta lambda = 1 and no momentum, v = w^t - eta g(v) after each step: near w^t."""
    flat = quadratic(tmp_path, "ditto", **{"ditto.lambda": 100.0, "learning-rate": 0.01})
    flat |= {"momentum": 0.0, "local-steps": 1}
    q, w = quadratics(flat), twin(flat | {"num-server-rounds": 9}, 0.0)[1]
    v_before = twin(flat | {"num-server-rounds": 9}, 100.0)[0]
    expected = w - 0.01 * q.a * (v_before - q.c)
    assert np.abs(run(flat, tmp_path).theta() - expected).max() < 1e-12
