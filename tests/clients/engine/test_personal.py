"""Test personal layers: trained as in a plain loop, never averaged, never sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config
from coterie.clients.engine.engine import Engine
from coterie.clients.models.options import Adaptation, MlpOptions
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split
from tests.inline import run
from tests.problems import classification
from tests.stepping import Stepping
from tests.test_table import NEEDS

DIGITS: dict[str, Any] = {
    "model": "mlp", "mlp.hidden": "5", "model.personal": "head", "peers": 3,
    "num-server-rounds": 2, "evaluate-every": 1, "local-steps": 2, "batch-size": 8,
    "partition.samples-per-peer": 12, "partition.clusters": 3, "partition.validation": 0.25,
    "momentum": 0.5, "device": "cpu",
}  # fmt: skip
HEAD = ["3.weight", "3.bias"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_the_whole_network(optimizer: str) -> None:
    """For a single peer the choice of personal layers has no effect."""
    training = Training(
        batch_size=4, local_steps=3, optimizer=optimizer, learning_rate=0.05, weight_decay=0.01,  # type: ignore[arg-type]
        momentum=0.5 if optimizer == "sgd" else 0.0,
    )  # fmt: skip
    ends = []
    for adaptation in (None, Adaptation(personal="head")):
        engine = Engine(
            classification([6, 9]), "mlp", MlpOptions("5"), [0, 1], training,
            dtype="float64", device="cpu", adaptation=adaptation,
        )  # fmt: skip
        x_pd, buffers = engine.initial(common=False)
        for round_ in (1, 2):
            fit = engine.fit(x_pd, buffers, engine.opt_state(x_pd), engine.batches(round_))
            x_pd, buffers = fit.x, fit.buffers
            if adaptation is None:  # fresh memory each round, of all or of none
                continue
            for name in [key for key in buffers if key not in HEAD]:
                buffers[name] = torch.zeros_like(buffers[name])
        named = {**engine.network.named(x_pd), **buffers}
        ends.append([named[name] for name in ("1.weight", "1.bias", *HEAD)])
    for whole, split in zip(*ends, strict=True):
        assert torch.allclose(whole, split, atol=1e-12)


def test_it_is_not_sent() -> None:
    engine = Engine(
        classification([6]), "mlp", MlpOptions("5"), [0], Training(), device="cpu",
        adaptation=Adaptation(personal="head"),
    )  # fmt: skip
    assert engine.network.names == ["1.weight", "1.bias"]
    assert engine.d == 16 * 5 + 5


@pytest.mark.parametrize("method", ["fedavg", "dpfl", "wga", "ifca", "fedem"])
def test_whoever_hosts_whom_keeps_its_own(method: str, tmp_path: Path) -> None:
    flat = {**DIGITS, **NEEDS.get(method, {}), "method": method}
    one = run(flat, tmp_path / "one")
    several = run(flat, tmp_path / "several", [[0], [1, 2]])
    for t in (0, 1, 2):
        assert np.allclose(one.metric("test_loss", t), several.metric("test_loss", t), rtol=1e-5)
    assert one.metric("train_loss", 2).mean() < one.metric("train_loss", 0).mean()
    if method == "fedavg":
        models = one.models()
        assert torch.equal(models[0]["1.weight"], models[1]["1.weight"])
        assert not torch.allclose(models[0]["3.weight"], models[1]["3.weight"])
        d = sum(models[0][name].numel() for name in ("1.weight", "1.bias"))
        assert one.metric("bytes_sent", 1)[0] == 2 * 4 * d


def test_the_configuration_goes_through_toml() -> None:
    config = Config.from_flat(DIGITS)
    assert '"model.personal" = "head"' in config.toml()
    assert 'model = "mlp"' in config.toml()


def test_without_memory_across_rounds_momentum_of_single_steps_does_nothing(tmp_path: Path) -> None:
    """`reset-optimizer` also forgets the momentum of personal layers."""
    flat = {**DIGITS, "method": "fedavg", "local-steps": 1, "num-server-rounds": 3}
    reset = run(flat | {"reset-optimizer": True}, tmp_path / "reset").models()
    none = run(flat | {"momentum": 0.0}, tmp_path / "none").models()
    kept = run(flat, tmp_path / "kept").models()
    for name in ("1.weight", *HEAD):
        assert torch.allclose(reset[0][name], none[0][name], atol=1e-7)
        assert not torch.allclose(reset[0][name], kept[0][name], atol=1e-7)


def lines(shifts: list[float]) -> Problem:
    """Return y = 2 x + shift at each peer, on the same four x around 0."""
    x = np.array([-1.5, -0.5, 0.5, 1.5])
    rows = tuple(np.arange(4) for _ in shifts)
    part = Split(rows, tuple((2 * x + shift)[:, None] for shift in shifts))
    return Problem(
        "lines", "regression", x[:, None], part, Split(rows, part.targets), part, 1,
        np.zeros(1), np.ones(1), np.full(len(shifts), 4),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shifts", [[-1.0, 0.0, 4.0], [1.0, 1.0, 1.0]])
def test_a_personal_intercept_fits_what_differs_by_a_shift_alone(shifts: list[float]) -> None:
    """A common one leaves the variance of the shifts; without shifts, the models are the same."""
    flat: dict[str, Any] = {
        "peers": 3, "model": "linear", "local-steps": 1, "batch-size": 4, "learning-rate": 0.1,
        "momentum": 0.0, "dtype": "float64", "num-server-rounds": 200,
    }  # fmt: skip
    losses = {}
    for method in ("fedavg", "fedavg-own-intercept"):
        cohort = Stepping({**flat, "method": method}, problem=lines(shifts))
        state = cohort.to(200)
        losses[method] = cohort.cohort.engine.losses(state.x, state.buffers, "test")[0].numpy()
    assert losses["fedavg-own-intercept"].max() < 1e-12
    variance = np.var(shifts)
    assert losses["fedavg"].mean() == pytest.approx(variance, abs=1e-12)
