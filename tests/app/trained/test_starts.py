"""Runs that start from the models of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import coterie
from coterie.app.config.config import Config
from coterie.app.config.preflight import check_weights
from coterie.app.institution.node import InstitutionNode
from coterie.errors import Error

KEYS: dict[str, Any] = {
    "method": "local", "peers": 3, "num-server-rounds": 2, "evaluate-every": 1, "device": "cpu",
    "partition.clusters": 1, "partition.samples-per-peer": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> coterie.Run:
    return coterie.run(None, KEYS, out=tmp_path_factory.mktemp("runs"), name="earlier")


def further(earlier: coterie.Run, **more: Any) -> coterie.Run:
    return coterie.run(
        None, {**KEYS, **more}, out=earlier.directory.parent, start_from="earlier", name="",
    )  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fedavg", "pfedgraph", "clustered-fl", "cobo"])
def test_round_0_is_the_end_of_the_earlier_run(earlier: coterie.Run, method: str) -> None:
    """Each peer has its own model, for methods that need a common start, too."""
    losses = earlier.metrics.query("round == 2").test_loss.to_numpy()
    assert len(set(losses)) == 3
    then = further(earlier, method=method).metrics.query("round == 0").test_loss.to_numpy()
    assert then == pytest.approx(losses, rel=1e-6)


@pytest.mark.slow
def test_two_runs_of_local_are_one(earlier: coterie.Run) -> None:
    """Without momentum a model is all that training hands on: 2 + 2 rounds are 4.

    A minibatch has all examples, so it does not depend on the round.
    """
    flat = {**KEYS, "local-epochs": 1, "batch-size": 24, "local-steps": 0}
    out = earlier.directory.parent
    coterie.run(None, flat, out=out, name="half")
    second = coterie.run(None, flat, out=out, start_from="half", name="second")
    whole = coterie.run(None, flat, num_server_rounds=4, out=out, name="whole")
    for peer in range(3):
        name = f"models/peer-{peer:04d}.safetensors"
        one, other = load_file(second.directory / name), load_file(whole.directory / name)
        for key, value in other.items():
            assert torch.allclose(one[key], value, atol=1e-6)


@pytest.mark.slow
def test_running_statistics_and_personal_layers_start_there_too(tmp_path: Path) -> None:
    flat = {**KEYS, "model": "tests.plugins:Net", "model.personal": "fc", "method": "fedavg"}
    first = coterie.run(None, flat, out=tmp_path, name="first")
    then = coterie.run(None, flat, out=tmp_path, start_from="first")
    loss = first.metrics.query("round == 2").test_loss.to_numpy()
    assert then.metrics.query("round == 0").test_loss.to_numpy() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"mlp.hidden": "16"}, "peer 0: model options: {'hidden': 'auto'}, in this run"),
        ({"model": "linear"}, "peer 0: model: mlp, in this run linear"),
        ({"peers": 4}, "which peer"),
        ({"model.frozen": "1"}, "peer 0: adaptation: "),
        ({"dataset": "breast-cancer", "model": "mlp"}, "peer 0: shape: (1, 8, 8)"),
        ({"privacy.kind": "examples"}, "privacy does not cover start-from"),
    ],
)
def test_other_networks_and_peers_are_refused_before_anything_is_written(
    earlier: coterie.Run, keys: dict[str, Any], says: str
) -> None:
    out = earlier.directory.parent
    before = set(out.iterdir())
    with pytest.raises(Error) as refused:
        coterie.run(None, {**KEYS, **keys}, out=out, start_from="earlier", name="never")
    assert says in str(refused.value)
    assert set(out.iterdir()) == before


def test_no_private_run_starts_from_weights_that_coterie_trained(
    earlier: coterie.Run, tmp_path: Path
) -> None:
    """They may be of the same data, and nobody would count their epsilon."""
    file = earlier.directory / "models" / "peer-0000.safetensors"
    keys = {**KEYS, "privacy.kind": "examples", "model.weights": str(file)}
    with pytest.raises(Error, match=r"privacy does not cover model\.weights = .* a model of Cot"):
        coterie.run(None, keys, out=tmp_path / "out", name="never")
    assert not (tmp_path / "out").exists()
    check_weights(Config.from_flat({**keys, "privacy.kind": "none"}))
    save_file(load_file(file), tmp_path / "own.safetensors")
    check_weights(Config.from_flat({**keys, "model.weights": str(tmp_path / "own.safetensors")}))


def test_there_must_be_such_a_run(tmp_path: Path) -> None:
    with pytest.raises(coterie.ResultsError, match=r"nowhere/models: no models"):
        coterie.run(None, KEYS, out=tmp_path, start_from="nowhere")


def test_a_mixture_is_no_start(tmp_path: Path) -> None:
    coterie.run(None, {**KEYS, "method": "fedem"}, out=tmp_path, name="mixed")
    with pytest.raises(coterie.ConfigError, match=r"its model is a mixture \(fedem\)"):
        coterie.run(None, KEYS, out=tmp_path, start_from="mixed")


def test_a_deployed_node_opens_no_run_that_the_relay_names(tmp_path: Path) -> None:
    config = Config.from_flat({**KEYS, "start-from": "/etc"})
    with pytest.raises(coterie.ConfigError, match="start-from is for simulations"):
        InstitutionNode(config, [0], tmp_path)


def test_a_comparison_starts_from_a_run(earlier: coterie.Run) -> None:
    out = earlier.directory.parent
    there = coterie.compare(
        ["local", "fedavg"], None, KEYS, seeds=1, out=out / "compare",
        start_from=str(earlier.directory),
    )  # fmt: skip
    at_start = there.metrics.query("round == 0").groupby("method").test_loss.mean()
    assert np.ptp(at_start.to_numpy()) == pytest.approx(0, abs=1e-9)
