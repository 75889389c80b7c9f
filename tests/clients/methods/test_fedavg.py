"""FedAvg and the oracle: a plain loop, and invariants of averaging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Bools, Letters
from coterie.clients.methods.fedavg import FedAvg, LocalTraining
from coterie.clients.methods.oracle import Oracle
from coterie.strategies.base_graph import mixing
from tests.inline import Floats, run
from tests.problems import write_quadratic

SAMPLES = [1, 2, 3, 10]


def quadratic(path: Path, **more: Any) -> dict[str, Any]:
    g = np.random.default_rng(0)
    flat: dict[str, Any] = write_quadratic(
        path / "problem.json", g.uniform(0.2, 1.5, (4, 3)), g.normal(size=(4, 3)),
        g.normal(size=3), samples=SAMPLES, **more,
    )  # fmt: skip
    return flat | {"method": "fedavg", "local-steps": 3, "learning-rate": 0.2, "momentum": 0.5}


def twin(flat: dict[str, Any], graph: Bools) -> Floats:
    """Run local steps, then average each peer with its senders."""
    problem = problem_of(Config.from_flat(flat))
    assert problem.start is not None
    x, a, c = problem.start.copy(), problem.inputs[:4, 0], problem.inputs[:4, 1]
    velocity = np.zeros_like(x)
    for _ in range(flat["num-server-rounds"]):
        for i in range(4):
            for _ in range(flat["local-steps"]):
                velocity[i] = flat["momentum"] * velocity[i] + a[i] * (x[i] - c[i])
                x[i] = x[i] - flat["learning-rate"] * velocity[i]
        shown = x.copy()
        for i in range(4):
            audience = [k for k in range(4) if graph[i, k] or k == i]
            total = sum(SAMPLES[k] for k in audience)
            x[i] = np.sum([SAMPLES[k] / total * shown[k] for k in audience], axis=0)
    return x


def test_over_the_base_graph_averages_are_exact_after_its_rounds(tmp_path: Path) -> None:
    """Five peers with one neighbour per round; with weights p_k averages would not be exact."""
    starts = np.random.default_rng(1).normal(size=(5, 3))
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "problem.json", np.ones((5, 3)), starts, starts, samples=[1, 2, 3, 4, 5]
    )
    rounds = len(mixing(5, 1))
    flat |= {
        "method": "fedavg", "topology": "base", "topology-degree": 1, "num-server-rounds": rounds,
        "local-steps": 1, "learning-rate": 1e-14,
    }  # fmt: skip
    for nodes in (1, 2):
        result = run(flat, tmp_path / str(nodes), nodes).theta()
        assert np.abs(result - starts.mean(axis=0)).max() < 1e-12


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("topology", ["full", "ring"])
def test_it_equals_a_plain_loop(tmp_path: Path, topology: str, nodes: int) -> None:
    flat = quadratic(tmp_path) | {"num-server-rounds": 10, "topology": topology}
    graph = Config.from_flat(flat).graph()
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - twin(flat, graph)).max() < 1e-12
    if topology == "full":
        assert np.abs(result.theta() - result.theta()[0]).max() < 1e-15
    shares = np.where(graph | np.eye(4, dtype=bool), SAMPLES, 0)
    assert np.allclose(result.weights(), shares / shares.sum(axis=1, keepdims=True), rtol=1e-14)


def test_one_local_step_of_everybody_is_a_step_down_the_mean_loss(tmp_path: Path) -> None:
    """From a common start FedAvg with one step is SGD on sum p_k f_k, so it finds its minimum."""
    flat = quadratic(tmp_path) | {"num-server-rounds": 250, "local-steps": 1, "momentum": 0.0}
    result = run(flat, tmp_path)
    problem = problem_of(Config.from_flat(flat))
    a, c, p = problem.inputs[:4, 0], problem.inputs[:4, 1], np.array(SAMPLES)[:, None]
    assert np.allclose(result.theta(), (p * a * c).sum(axis=0) / (p * a).sum(axis=0), atol=1e-10)


def rule_of(
    tmp_path: Path, kind: type[LocalTraining[Any]], clusters: list[int] | None
) -> LocalTraining[Any]:
    config = Config.from_flat(quadratic(tmp_path))
    known = None if clusters is None else np.array(clusters)
    problem = replace(problem_of(config), clusters=known)
    engine = Engine(problem, "auto", None, range(4), config.training, device="cpu")
    return kind().bind(engine, 10)


def test_who_is_missing_is_left_out_of_the_mean(tmp_path: Path) -> None:
    rule = rule_of(tmp_path, FedAvg, None)
    x = torch.tensor([[1.0] * 3, [2.0] * 3, [4.0] * 3, [8.0] * 3], dtype=torch.float64)
    state = replace(rule.init(), x=x)
    senders, recipients = np.array([[2, 0], [3, 1], [0, 1]]).T
    offers = Letters(senders, recipients, senders, np.arange(4), {"x": x})
    means = rule.update(state, rule.inbox(1, offers)).x[:, 0]
    expected = [(1 * 1 + 3 * 4) / 4, (2 * 2 + 10 * 8 + 1 * 1) / 13, 4.0, 8.0]
    assert means.tolist() == pytest.approx(expected, rel=1e-15)


def test_the_oracle_listens_inside_its_cluster(tmp_path: Path) -> None:
    rule = rule_of(tmp_path, Oracle, [0, 1, 0, 1])
    state = rule.init()
    assert sorted(map(tuple, rule.edges(rule.wants(state, 1)).tolist())) == [
        (0, 2),
        (1, 3),
        (2, 0),
        (3, 1),
    ]
    expected = [[1 / 4, 0, 3 / 4, 0], [0, 2 / 12, 0, 10 / 12]] * 2
    assert np.allclose(rule.weights(state), expected, rtol=1e-15)


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("mixing", ["uniform", "metropolis"])
def test_other_weights_ignore_the_samples(tmp_path: Path, mixing: str, nodes: int) -> None:
    """On a star, all neighbours have weight 1/2 or 1/4 (uniform), or all edges 1/4 (Metropolis)."""
    (tmp_path / "star.json").write_text("[[0, 1], [0, 2], [0, 3]]")
    flat = quadratic(tmp_path) | {
        "topology": "file", "topology-file": str(tmp_path / "star.json"), "mixing": mixing,
        "num-server-rounds": 3, "momentum": 0.0,
    }  # fmt: skip
    leaf = 1 / 2 if mixing == "uniform" else 1 / 4
    w = np.array([[1 / 4] * 4, *([leaf, *row] for row in np.eye(3) * (1 - leaf))])
    problem = problem_of(Config.from_flat(flat))
    assert problem.start is not None
    x, a, c = problem.start.copy(), problem.inputs[:4, 0], problem.inputs[:4, 1]
    for _ in range(3):
        for _ in range(3):
            x = x - 0.2 * a * (x - c)
        x = w @ x
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-15


def test_metropolis_weights_preserve_the_mean(tmp_path: Path) -> None:
    """Without training, the mean of all models stays; the other weights move it."""
    starts = np.random.default_rng(1).normal(size=(9, 3))
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "problem.json", np.ones((9, 3)), starts, starts, samples=[*range(1, 10)]
    )
    flat |= {
        "method": "fedavg", "topology": "barabasi-albert", "num-server-rounds": 6,
        "local-steps": 1, "learning-rate": 1e-14,
    }  # fmt: skip
    moved = {
        mixing: np.abs(
            run(flat | {"mixing": mixing}, tmp_path / mixing).theta().mean(axis=0)
            - starts.mean(axis=0)
        ).max()
        for mixing in ("samples", "uniform", "metropolis")
    }
    assert moved["metropolis"] < 1e-12
    assert min(moved["samples"], moved["uniform"]) > 1e-3


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"topology": "base", "mixing": "uniform"}, "has averaging weights of its own"),
        ({"topology": "push", "mixing": "metropolis"}, "has averaging weights of its own"),
        ({"topology": "epidemic", "mixing": "metropolis"}, "same undirected edges in all rounds"),
    ],
)
def test_weights_that_do_not_go_with_a_topology_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config.from_flat({"method": "fedavg", **keys}).strategy()
    Config.from_flat({"method": "dpfl", **keys}).strategy()
