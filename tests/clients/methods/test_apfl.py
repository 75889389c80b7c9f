"""APFL: a plain loop, and its two limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inline import Floats, run
from tests.kit import PEERS, Plain, digits, quadratic, stacked
from tests.stepping import Stepping


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Return mixtures, global models, and the shares alpha of a plain loop."""
    q, momentum = Plain(flat), flat["momentum"]
    w, v = q.start.copy(), q.start.copy()
    pace_w, pace_v = np.zeros_like(w), np.zeros_like(v)
    alpha = np.full(PEERS, flat["apfl.alpha"])
    for t in range(flat["num-server-rounds"]):
        eta = flat["learning-rate"] * flat.get("learning-rate-decay", 1.0) ** t
        for i in range(PEERS):
            moved = alpha[i]
            for step in range(flat["local-steps"]):
                at_mixture = q.gradient(i, alpha[i] * v[i] + (1 - alpha[i]) * w[i])
                if step == 0 and flat.get("apfl.adaptive", False):
                    moved = np.clip(alpha[i] - eta * (v[i] - w[i]) @ at_mixture, 0, 1)
                pace_w[i] = momentum * pace_w[i] + q.gradient(i, w[i])
                pace_v[i] = momentum * pace_v[i] + alpha[i] * at_mixture
                w[i], v[i] = w[i] - eta * pace_w[i], v[i] - eta * pace_v[i]
            alpha[i] = moved
        w = q.averaged(w)
    return alpha[:, None] * v + (1 - alpha[:, None]) * w, w, alpha


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("adaptive", [False, True])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int, adaptive: bool) -> None:
    options = {"apfl.alpha": 0.3, "apfl.adaptive": adaptive, "learning-rate-decay": 0.9}
    flat = quadratic(tmp_path, "apfl", **options)
    result, (mixture, w, alpha) = run(flat, tmp_path, nodes), twin(flat)
    assert np.abs(result.theta() - mixture).max() < 1e-12
    assert np.allclose(result.metric("global_test_loss"), Plain(flat).losses(w), rtol=1e-12)
    assert (np.ptp(alpha) > 1e-3) == adaptive


@pytest.mark.parametrize(("alpha", "end"), [(1.0, "local"), (0.0, "fedavg")])
def test_at_its_ends_it_is_local_training_and_fedavg(
    tmp_path: Path, alpha: float, end: str
) -> None:
    result = run(digits("apfl", **{"apfl.alpha": alpha}), tmp_path / "apfl")
    assert stacked(result).equal(stacked(run(digits(end), tmp_path / end)))


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_its_shared_model_is_fedavg_s(reset: bool, adaptive: bool) -> None:
    """Whatever the local models do: the shared one has its own steps, momentum and averages."""
    shared = {"reset-optimizer": reset, "momentum": 0.9, "learning-rate-decay": 0.9}
    apfl = Stepping(digits("apfl", **{"apfl.adaptive": adaptive}, **shared))
    fedavg = Stepping(digits("fedavg", **shared))
    for t in (1, 2, 3):
        assert apfl.to(t).x.equal(fedavg.to(t).x)


def test_the_shares_stay_between_0_and_1(tmp_path: Path) -> None:
    """A peer with a distant optimum would increase its share beyond 1."""
    flat = quadratic(tmp_path, "apfl", **{"apfl.alpha": 0.9, "apfl.adaptive": True})
    alpha = twin(flat | {"num-server-rounds": 60})[2]
    assert alpha.max() == 1.0
    assert alpha.min() >= 0.0
    result = run(flat | {"num-server-rounds": 60}, tmp_path).theta()
    assert np.abs(result - twin(flat | {"num-server-rounds": 60})[0]).max() < 1e-12
