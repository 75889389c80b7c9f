"""Test foreign networks: tried before a run; batched and sequential results agree."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.clients.engine import probe
from coterie.clients.engine.network import ModelError, Network
from coterie.clients.models.options import Adaptation
from tests import plugins
from tests.inline import run
from tests.problems import classification

FLAT: dict[str, Any] = {
    "method": "fedavg", "model": "tests.plugins:branching", "peers": 3, "num-server-rounds": 2,
    "evaluate-every": 1, "local-steps": 2, "batch-size": 6, "device": "cpu",
    "partition.samples-per-peer": 12, "partition.clusters": 3,
}  # fmt: skip


def test_what_can_be_batched_is() -> None:
    options = plugins.NetOptions()
    network = Network(plugins.Net((1, 4, 4), 3, options))
    probe.try_out(network, classification([4]), "mine")
    assert not network.alone


def test_what_cannot_is_named_with_layer_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    probe._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # warned once
            probe.check(
                "tests.plugins:branching", None, Adaptation(), classification([4]), "float32"
            )
    (line,) = caplog.messages
    assert "runs one model at a time: use torch.where instead of if" in line
    assert 'in layer "1" (Branching)' in line


def test_one_model_at_a_time_gives_the_same_numbers_wherever_peers_live(tmp_path: Path) -> None:
    """Random draws of the network depend on the model's key only."""
    one, several = (run(FLAT, tmp_path / str(k), k) for k in (1, 3))
    for t in (0, 1, 2):
        assert np.allclose(one.metric("train_loss", t), several.metric("train_loss", t), rtol=1e-6)
    assert not np.allclose(one.metric("train_loss", 0), one.metric("train_loss", 2))


class Broken(nn.Module):
    """Network that fails on every input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no way. More of it.")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Flatten(), Broken(), nn.Linear(16, 3)], 'in layer "1" (Broken): no way'),
        ([nn.Flatten(), nn.Linear(16, 4)], "outputs of shape (2, 4) for 2 examples: classific"),
    ],
)
def test_what_cannot_run_is_refused(layers: list[nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        probe.try_out(Network(nn.Sequential(*layers)), classification([4]), "mine")
