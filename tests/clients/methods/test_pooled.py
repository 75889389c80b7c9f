"""Pooled training: a plain loop on all data, and the methods that it equals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inline import run
from tests.kit import PEERS, Plain, digits, quadratic, stacked

FULL: dict[str, Any] = {
    "model": "linear", "batch-size": 1000, "local-steps": 1, "momentum": 0.0,
    "num-server-rounds": 10, "learning-rate": 0.1, "dtype": "float64",
}  # fmt: skip


@pytest.mark.parametrize("nodes", [1, PEERS])
def test_on_quadratics_it_descends_the_mean_loss(tmp_path: Path, nodes: int) -> None:
    flat = quadratic(tmp_path, "pooled")
    q = Plain(flat)
    x, velocity, p = q.start[0], np.zeros(3), q.samples / q.samples.sum()
    for _ in range(flat["num-server-rounds"] * flat["local-steps"]):
        gradient = sum(p[i] * q.gradient(i, x) for i in range(q.n))
        velocity = flat["momentum"] * velocity + gradient
        x = x - flat["learning-rate"] * velocity
    assert np.abs(run(flat, tmp_path, nodes).theta() - x).max() < 1e-12


def test_with_full_batches_it_is_gradient_descent_on_all_rows(tmp_path: Path) -> None:
    """So is FedAvg with one step a round, whose weights are the numbers of examples."""
    pooled = run(digits("pooled", **FULL), tmp_path / "pooled")
    fedavg = run(digits("fedavg", **FULL), tmp_path / "fedavg")
    assert np.abs((stacked(pooled) - stacked(fedavg)).numpy()).max() < 1e-12
    assert np.allclose(pooled.metric("test_loss"), fedavg.metric("test_loss"), rtol=1e-12)
    assert (
        pooled.metric("gradient_evaluations") == 3 * fedavg.metric("gradient_evaluations")
    ).all()


def test_a_single_peer_trains_alone(tmp_path: Path) -> None:
    flat = {"peers": 1, "partition.clusters": 1, "partition.kind": "iid"}
    pooled = run(digits("pooled", **flat), tmp_path / "pooled")
    assert np.array_equal(
        stacked(pooled), stacked(run(digits("local", **flat), tmp_path / "local"))
    )


def test_a_peer_that_slept_has_a_model_of_fewer_rounds(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("peer,from,to\n0,7,10\n1,1,10\n2,1,10\n", encoding="utf-8")
    flat = digits("pooled", **FULL, **{"schedule.kind": "trace", "schedule.file": str(trace)})
    late, *others = stacked(run(flat, tmp_path / "ten"))
    four = stacked(run(digits("pooled", **FULL | {"num-server-rounds": 4}), tmp_path / "four"))
    ten = stacked(run(digits("pooled", **FULL), tmp_path / "all"))
    assert np.abs((late - four[0]).numpy()).max() < 1e-12
    assert all(np.abs((other - ten[0]).numpy()).max() < 1e-12 for other in others)
