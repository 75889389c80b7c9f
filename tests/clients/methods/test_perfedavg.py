"""Per-FedAvg: a plain loop, and FedAvg as its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.clients.methods.perfedavg import PerFedAvg
from tests.inline import Floats, run
from tests.kit import Plain, digits, quadratic, rule_of, stacked
from tests.problems import write_quadratic


def twin(flat: dict[str, Any], alpha: float) -> tuple[Floats, Floats]:
    """Return personal and shared models; f(w - alpha grad f(w)) is a quadratic too."""
    q = Plain(flat)
    q.a, curvature = q.a * (1 - alpha * q.a), q.a
    w = q.start
    for _ in range(q.rounds):
        w = q.averaged(q.train(w))
    return q.c + (1 - alpha * curvature) * (w - q.c), w


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = quadratic(tmp_path, "perfedavg", **{"perfedavg.alpha": 0.4})
    result, (personal, w) = run(flat, tmp_path, nodes), twin(flat, 0.4)
    assert np.abs(result.theta() - personal).max() < 1e-12
    assert np.allclose(result.metric("global_test_loss"), Plain(flat).losses(w), rtol=1e-12)


def test_without_an_own_step_it_is_fedavg(tmp_path: Path) -> None:
    none = run(digits("perfedavg", **{"perfedavg.alpha": 0.0}), tmp_path / "per")
    fedavg = run(digits("fedavg"), tmp_path / "fedavg")
    assert stacked(none).equal(stacked(fedavg))


def test_each_bill_has_two_gradients_a_step_and_one_last_minibatch(tmp_path: Path) -> None:
    result = run(digits("perfedavg", **{"evaluate-every": 1}), tmp_path)
    for t in range(4):
        assert (result.metric("gradient_evaluations", t) == (2 * 3 * t + 1) * 8).all()


def test_the_two_minibatches_are_independent(tmp_path: Path) -> None:
    """At curvature, alpha and eta 1 a step ends at e - e': 0 if both draws were the same."""
    d = 4000
    flat = write_quadratic(
        tmp_path / "p.json", np.ones((1, d)), np.zeros((1, d)), np.ones(d), noise=1
    )
    rule = rule_of(PerFedAvg(alpha=1.0), {**flat, "local-steps": 1, "learning-rate": 1})
    moved = rule.train(rule.init(), 1).x
    tolerance = 5 * np.sqrt(2 / d)  # five standard deviations of the variance's estimate
    assert float(moved.var()) == pytest.approx(2, rel=tolerance)
