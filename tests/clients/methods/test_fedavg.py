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
from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import FedAvg, Oracle
from tests.inline import Floats, run
from tests.kit import SAMPLES, Plain, engine_of, quadratic, rule_of
from tests.problems import write_quadratic


def twin(flat: dict[str, Any]) -> Floats:
    """Run local steps, then average each peer with its senders."""
    q = Plain(flat)
    x = q.start
    for _ in range(q.rounds):
        x = q.averaged(q.train(x))
    return x


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("topology", ["full", "ring"])
def test_it_equals_a_plain_loop(tmp_path: Path, topology: str, nodes: int) -> None:
    flat = quadratic(tmp_path, "fedavg", topology=topology)
    graph = Config.from_flat(flat).graph()
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - twin(flat)).max() < 1e-12
    if topology == "full":
        assert np.abs(result.theta() - result.theta()[0]).max() < 1e-15
    shares = np.where(graph | np.eye(4, dtype=bool), SAMPLES, 0)
    assert np.allclose(result.weights(), shares / shares.sum(axis=1, keepdims=True), rtol=1e-14)


def test_one_local_step_of_everybody_is_a_step_down_the_mean_loss(tmp_path: Path) -> None:
    """From a common start FedAvg with one step is SGD on sum p_k f_k, so it finds its minimum."""
    one = {"num-server-rounds": 250, "local-steps": 1, "momentum": 0.0}
    flat = quadratic(tmp_path, "fedavg", **one)
    result = run(flat, tmp_path)
    q, p = Plain(flat), np.array(SAMPLES)[:, None]
    minimum = (p * q.a * q.c).sum(axis=0) / (p * q.a).sum(axis=0)
    assert np.allclose(result.theta(), minimum, atol=1e-10)


def test_who_is_missing_is_left_out_of_the_mean(tmp_path: Path) -> None:
    rule: FedAvg[Any] = rule_of(FedAvg(), quadratic(tmp_path, "fedavg"))
    x = torch.tensor([[1.0] * 3, [2.0] * 3, [4.0] * 3, [8.0] * 3], dtype=torch.float64)
    state = replace(rule.init(), x=x)
    senders, recipients = np.array([[2, 0], [3, 1], [0, 1]]).T
    offers = Letters(senders, recipients, senders, np.arange(4), {"x": x})
    means = rule.update(state, rule.inbox(1, offers)).x[:, 0]
    expected = [(1 * 1 + 3 * 4) / 4, (2 * 2 + 10 * 8 + 1 * 1) / 13, 4.0, 8.0]
    assert means.tolist() == pytest.approx(expected, rel=1e-15)


def test_the_oracle_listens_inside_its_cluster(tmp_path: Path) -> None:
    flat = quadratic(tmp_path, "fedavg")
    problem = replace(problem_of(Config.from_flat(flat)), clusters=np.array([0, 1, 0, 1]))
    rule: Oracle = Oracle().bind(engine_of(problem, "auto"), 10)
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
    flat = quadratic(tmp_path, "fedavg") | {
        "topology": "file", "topology-file": str(tmp_path / "star.json"), "mixing": mixing,
        "num-server-rounds": 3, "momentum": 0.0,
    }  # fmt: skip
    leaf = 1 / 2 if mixing == "uniform" else 1 / 4
    w = np.array([[1 / 4] * 4, *([leaf, *row] for row in np.eye(3) * (1 - leaf))])
    q = Plain(flat)
    x = q.start
    for _ in range(q.rounds):
        x = w @ q.train(x)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-15


def test_metropolis_weights_preserve_the_mean(tmp_path: Path) -> None:
    """Without training, the mean of all models stays; the other weights move it."""
    starts = np.random.default_rng(1).normal(size=(9, 3))
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "problem.json", np.ones((9, 3)), starts, starts, samples=[*range(1, 10)]
    )
    (tmp_path / "star.json").write_text(str([[0, k] for k in range(1, 9)]), encoding="utf-8")
    flat |= {
        "method": "fedavg", "topology": "file", "topology-file": str(tmp_path / "star.json"),
        "num-server-rounds": 6,
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
        ({"topology": "push", "mixing": "uniform"}, "has averaging weights of its own"),
        ({"topology": "push", "mixing": "metropolis"}, "has averaging weights of its own"),
        ({"topology": "epidemic", "mixing": "metropolis"}, "same undirected edges in all rounds"),
    ],
)
def test_weights_that_do_not_go_with_a_topology_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config.from_flat({"method": "fedavg", **keys}).strategy()
    Config.from_flat({"method": "dpfl", **keys}).strategy()
