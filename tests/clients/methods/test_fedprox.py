"""FedProx: a plain loop, and FedAvg as its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inline import Floats, run
from tests.kit import Plain, digits, quadratic, stacked


def twin(flat: dict[str, Any], mu: float) -> Floats:
    q = Plain(flat)
    w = q.start
    for _ in range(q.rounds):
        w = q.averaged(q.train(w, lambda i, x, before=w: mu * (x - before[i])))  # type: ignore[misc]
    return w


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = quadratic(tmp_path, "fedprox", **{"fedprox.mu": 0.7})
    result = run(flat, tmp_path, nodes).theta()
    assert np.abs(result - twin(flat, 0.7)).max() < 1e-12
    assert np.abs(result - twin(flat, 0.0)).max() > 1e-3  # the penalty has an effect


def test_without_penalty_it_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    prox = run(digits("fedprox", **{"fedprox.mu": 0.0}), tmp_path / "prox")
    assert stacked(prox).equal(stacked(run(digits("fedavg"), tmp_path / "avg")))


def test_one_local_step_does_not_feel_the_penalty(tmp_path: Path) -> None:
    """The penalty is 0 at the start of the round."""
    prox = run(digits("fedprox", **{"fedprox.mu": 9.0, "local-steps": 1}), tmp_path / "prox")
    assert stacked(prox).equal(stacked(run(digits("fedavg", **{"local-steps": 1}), tmp_path / "a")))
