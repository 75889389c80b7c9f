"""Ditto: a plain loop, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inline import Floats, run
from tests.kit import Plain, digits, quadratic, stacked


def twin(flat: dict[str, Any], strength: float) -> tuple[Floats, Floats]:
    """Return personal and global models of a plain loop."""
    shared, own = Plain(flat), Plain(flat)
    w, v = shared.start, own.start
    for _ in range(shared.rounds):
        v = own.train(v, lambda i, x, w=w: strength * (x - w[i]))  # type: ignore[misc]
        w = shared.averaged(shared.train(w))
    return v, w


@pytest.mark.parametrize("nodes", [1, 4])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = quadratic(tmp_path, "ditto", **{"ditto.lambda": 0.7})
    result, (v, w) = run(flat, tmp_path, nodes), twin(flat, 0.7)
    assert np.abs(result.theta() - v).max() < 1e-12
    assert np.allclose(result.metric("global_test_loss"), Plain(flat).losses(w), rtol=1e-12)
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
    q, w = Plain(flat), twin(flat | {"num-server-rounds": 9}, 0.0)[1]
    v_before = twin(flat | {"num-server-rounds": 9}, 100.0)[0]
    expected = w - 0.01 * q.a * (v_before - q.c)
    assert np.abs(run(flat, tmp_path).theta() - expected).max() < 1e-12
