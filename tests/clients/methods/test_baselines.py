"""Baselines derived from FedAvg: letters, isolation of peers, and a single peer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.clients.engine.engine import Engine
from coterie.clients.models.options import MODELS
from tests.inline import run
from tests.kit import SAMPLES, digits, normed, quadratic, stacked

RELATIVES = (
    "fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto", "apfl", "perfedavg", "fedrep",
    "knn-per",
)  # fmt: skip
GLOBAL = ("fedavg-ft", "fedprox-ft", "ditto", "apfl", "perfedavg", "knn-per")


@pytest.mark.some(4)
@pytest.mark.parametrize("method", RELATIVES)
def test_buffers_never_travel(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "linear", replace(MODELS["linear"], build=normed))
    few = {f"{method}.epochs": 1} if method.endswith("-ft") else {}
    flat = digits(method, model="linear", **few, **{"num-server-rounds": 2})
    config = Config.from_flat(flat)
    engine = Engine(problem_of(config), "linear", None, range(3), config.training, device="cpu")
    rule = config.options.bind(engine, 3)
    _, offer = rule.offer(rule.init(), 1)
    head = 5 * 10 + 10 if method == "fedrep" else 0
    assert {n: v.shape for n, v in offer.items()} == {"body" if head else "x": (3, engine.d - head)}
    result = run(flat, tmp_path, 3)
    means = stacked(result, "2.running_mean")
    assert all((means[i] - means[k]).abs().max() > 1e-3 for i in range(3) for k in range(i))


@pytest.mark.parametrize("method", GLOBAL)
def test_the_global_model_of_a_peer_alone_is_local_training(tmp_path: Path, method: str) -> None:
    """Except the penalty, which is 0 at one step per round, and Per-FedAvg's inner step."""
    alone = {"peers": 1, "partition.clusters": 1, "local-steps": 1}
    if method == "perfedavg":
        alone["perfedavg.alpha"] = 0
    result = run(digits(method, **alone), tmp_path / "one")
    local = run(digits("local", **alone), tmp_path / "local")
    assert result.metric("global_test_loss").tolist() == local.metric("test_loss").tolist()
    assert result.metric("bytes_sent").tolist() == [0]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "knn-per"])
def test_a_peer_alone_is_local_training(tmp_path: Path, method: str) -> None:
    """At one step per round Ditto's two models are and stay equal."""
    alone = {"peers": 1, "partition.clusters": 1, "local-steps": 1}
    result = run(digits(method, **alone), tmp_path / "one")
    (mine,), (local,) = result.models(), run(digits("local", **alone), tmp_path / "local").models()
    assert all(mine[name].equal(value) for name, value in local.items())


@pytest.mark.parametrize("method", RELATIVES)
def test_the_graph_of_a_ring_is_a_ring(tmp_path: Path, method: str) -> None:
    more = {"topology": "ring", "num-server-rounds": 1}
    result = run(quadratic(tmp_path, method, **more), tmp_path).weights()
    near = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]])
    expected = near * np.array(SAMPLES)
    assert np.allclose(result, expected / expected.sum(axis=1, keepdims=True), rtol=1e-14)
