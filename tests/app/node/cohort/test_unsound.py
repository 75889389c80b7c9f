"""Test non-finite models: no other peer learns from them, on any assignment to nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.config.registry import METHODS
from tests.inline import Run, run
from tests.problems import write_quadratic
from tests.test_table import NEEDS, REFUSES

PEERS, ROUNDS = 4, 6
SICK = 2


def flat(path: Path, method: str) -> dict[str, Any]:
    """Give one peer a loss so steep that its gradient overflows."""
    g = np.random.default_rng(0)
    curvature, centre = g.uniform(0.5, 1.0, (PEERS, 3)), g.normal(size=(PEERS, 3))
    curvature[SICK], centre[SICK] = 1e308, 5.0
    problem = write_quadratic(
        path / "problem.json", curvature, centre, [0.0] * 3, validation_centre=centre + 0.1
    )
    training = {"local-steps": 3, "learning-rate": 0.2, "num-server-rounds": ROUNDS}
    return problem | training | NEEDS.get(method, {}) | {"method": method, "evaluate-every": 2}


def models(result: Run) -> np.ndarray[Any, Any]:
    return np.array([model["theta"].numpy() for model in result.models()])


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of its own numbers
@pytest.mark.parametrize("method", sorted(METHODS.keys() - REFUSES.keys() - {"pooled"}))
def test_one_that_diverges_spoils_nobody_wherever_it_is_hosted(tmp_path: Path, method: str) -> None:
    keys = flat(tmp_path, method)
    alone, apart = run(keys, tmp_path / "one", 1), run(keys, tmp_path / "many", PEERS)
    others = [peer for peer in range(PEERS) if peer != SICK]
    for result in (alone, apart):
        assert np.isfinite(models(result)[others]).all()
        assert np.isfinite(result.metric("test_loss", ROUNDS)[others]).all()
        assert (result.metric("test_loss", ROUNDS) < result.metric("test_loss", 0))[others].any()
    np.testing.assert_allclose(models(alone)[others], models(apart)[others], rtol=1e-10, atol=1e-10)
    for name in ("bytes_sent", "bytes_received"):
        np.testing.assert_array_equal(alone.metric(name, ROUNDS), apart.metric(name, ROUNDS))


def test_it_keeps_its_model_and_is_counted(tmp_path: Path) -> None:
    result = run(flat(tmp_path, "fedavg"), tmp_path, 2)
    counts = [result.reports[ROUNDS, p].metrics.get("unsound_results") for p in range(PEERS)]
    assert counts == [None, None, 2 * ROUNDS, None]  # its training, and the average with it
    assert not models(result)[SICK].any(), "where it started"
    assert any("are not finite" in line for line in result.refused)


def test_the_others_are_where_they_would_be_without_it(tmp_path: Path) -> None:
    keys = flat(tmp_path, "fedavg")
    edges = [[i, j] for i in range(PEERS) for j in range(i) if SICK not in (i, j)]
    (tmp_path / "graph.json").write_text(str(edges))
    without = {"topology": "file", "topology-file": str(tmp_path / "graph.json")}
    with_it, expected = (run(k, tmp_path / str(len(k)), 2) for k in (keys, keys | without))
    others = [peer for peer in range(PEERS) if peer != SICK]
    assert Config.from_flat(keys | without).graph().sum() == 6
    np.testing.assert_array_equal(models(with_it)[others], models(expected)[others])


def test_a_run_that_is_stopped_counts_on(tmp_path: Path) -> None:
    keys = flat(tmp_path, "cobo")
    whole, half = run(keys, tmp_path / "whole", 2), run(keys, tmp_path / "half", 2, until=4)
    rest = run(keys, tmp_path / "half", 2, after=half)
    for peer in range(PEERS):
        assert rest.reports[ROUNDS, peer].metrics == whole.reports[ROUNDS, peer].metrics
