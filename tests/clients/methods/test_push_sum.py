"""Averaging methods on directed edges: stochastic gradient push."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from tests.inline import run
from tests.kit import Plain, digits, quadratic
from tests.stepping import Stepping
from tests.topologies import mixing

FOUR = [(1, 0, 1), (1, 0, 2), (1, 1, 2), (2, 2, 3), (2, 3, 0), (2, 1, 0), (2, 2, 0), (2, 3, 1)]
THREE = [(1, 0, 1), (1, 0, 2), (2, 1, 2), (3, 2, 0), (3, 2, 1)]
AVERAGING = sorted(name for name, method in METHODS.items() if method.mixes)


def csv(directory: Path, edges: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Write edges (round, sender, recipient) to a topology file; return its keys."""
    file = directory / "edges.csv"
    lines = ["round,sender,recipient", *(",".join(map(str, edge)) for edge in edges)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return {"topology": "file", "topology-file": str(file)}


@pytest.mark.parametrize("nodes", [1, 3])
def test_fedavg_equals_the_loop_of_the_paper(tmp_path: Path, nodes: int) -> None:
    """Assran et al., algorithm 1, in its own variables: sums x_i, weights w_i, z_i = x_i / w_i."""
    flat = quadratic(tmp_path, "fedavg", **csv(tmp_path, FOUR))
    q = Plain(flat)
    x, w, velocity = q.start.copy(), np.ones(4), np.zeros_like(q.start)
    for t in range(1, flat["num-server-rounds"] + 1):
        for i in range(4):
            z = y = x[i] / w[i]
            for _ in range(flat["local-steps"]):
                velocity[i] = flat["momentum"] * velocity[i] + q.gradient(i, y)
                y = y - flat["learning-rate"] * velocity[i]
            x[i] = x[i] + y - z
        sent = [{i, *(b for r, a, b in FOUR if a == i and r == (t - 1) % 2 + 1)} for i in range(4)]
        x = np.array([sum(x[j] / len(sent[j]) for j in range(4) if i in sent[j]) for i in range(4)])
        w = np.array([sum(w[j] / len(sent[j]) for j in range(4) if i in sent[j]) for i in range(4)])
    result = run(flat, tmp_path / "run", nodes)
    assert np.abs(result.theta() - x / w[:, None]).max() < 1e-12


@pytest.mark.parametrize("method", AVERAGING)
def test_the_weighted_sum_moves_by_what_the_peers_learnt_and_nothing_else(
    tmp_path: Path, method: str
) -> None:
    """sum_i w_{t+1,i} z_i after a round is sum_i w_{t,i} z_i before, and every peer's own step."""
    flat = digits(method, dtype="float64", **csv(tmp_path, THREE))
    starts = dict[int, Any]()

    def shared(state: Any) -> Any:
        if method == "fedem":
            return state.members.flatten(1).numpy()
        rule: Any = stepping.rule
        return (state.x[:, ~rule.head] if method in ("fedrep", "fedpac") else state.x).numpy()

    stepping = Stepping(flat, ended=lambda t, *_: starts.update({t: shared(stepping.state)}))
    push = mixing("file", 3, degree=2, file=flat["topology-file"])
    assert push is not None
    trained = shared(stepping.to(2))
    stepping.to(3)
    (_, before), (_, after) = push(3), push(4)
    assert np.abs(before - 1).max() > 0.3
    expected = before @ starts[2] + (trained - starts[2]).sum(axis=0)
    assert np.abs(trained - starts[2]).max() > 1e-3
    assert np.abs(after @ starts[3] - expected).max() < 1e-12


def test_those_that_average_are_fedavg_and_its_relatives() -> None:
    assert AVERAGING == [
        "apfl", "ditto", "fedavg", "fedavg-ft", "fedem", "fedpac", "fedprox", "fedprox-ft",
        "fedrep", "knn-per", "perfedavg",
    ]  # fmt: skip


def test_without_a_way_back_they_are_refused_and_others_go_on(tmp_path: Path) -> None:
    one_way = csv(tmp_path, [(1, 0, 1), (1, 1, 0), (2, 1, 2)])
    with pytest.raises(ConfigError, match="peer 1 sends to peer 2, but no path leads back"):
        Config.from_flat(digits("fedavg", **one_way)).strategy()
    result = run(digits("fedfomo", **one_way), tmp_path / "run", 2)
    assert np.isfinite(result.metric("test_loss")).all()


def test_the_file_of_the_page_is_one_that_averages_take(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    edges = page.split("```\nround,sender,recipient\n")[1].split("```")[0]
    file = tmp_path / "edges.csv"
    file.write_text(f"round,sender,recipient\n{edges}", encoding="utf-8")
    push = mixing("file", 3, degree=2, file=str(file))
    assert push is not None
    assert [*zip(*np.nonzero(push(1)[0]), strict=True)] == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]


def test_who_sleeps_takes_its_weight_along(tmp_path: Path) -> None:
    """Push-sum continues over the awake peers; one node and several give the same."""
    keys = csv(tmp_path, THREE) | {"schedule.kind": "churn", "schedule.mean-up": 2.0}
    one = run(digits("fedavg", **keys), tmp_path / "1").metric("test_loss")
    three = run(digits("fedavg", **keys), tmp_path / "3", 3).metric("test_loss")
    assert np.isfinite(one).all()
    assert one == pytest.approx(three, abs=1e-6)
