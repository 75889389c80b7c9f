"""Control for peers that join late: fine-tuning of the mean of the others' models.

Newcomers join as a late node joins a deployment, and train with the method. The control needs only
the others' models: take their mean, and train it on the newcomer's data for the same number of
rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.node.assembly import engine_of
from coterie.app.runs import atomic
from coterie.clients.engine.network import Buffers
from coterie.clients.engine.privacy import UPDATE
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Handler

FILE = "newcomers.json"


class LateTransport(InProcessTransport):
    """Transport whose last node cannot be reached before round `joins`.

    `ended` returns the last completed round.
    """

    def __init__(self, nodes: Sequence[Handler], ended: Callable[[], int], joins: int) -> None:
        super().__init__(nodes)
        self._ended, self._joins = ended, joins

    def nodes(self) -> list[int]:
        return super().nodes()[: None if self._ended() + 1 >= self._joins else -1]


def write_control(config: Config) -> None:
    """Fine-tune the mean of the others' models for each newcomer, and write newcomers.json."""
    run_dir, newcomers = Path(config.run_dir), config.newcomers
    others = [peer for peer in range(config.peers) if peer not in newcomers]
    engine = engine_of(config, problem_of(config), newcomers)
    models = [load_file(run_dir / "models" / f"peer-{peer:04d}.safetensors") for peer in others]
    count = len(newcomers)

    def mean_of(name: str) -> torch.Tensor:
        values = torch.stack([model[name] for model in models])
        mean = values.double().mean(dim=0).to(values.dtype)
        return mean.to(engine.device).expand(count, *mean.shape).clone()

    x_pd = torch.cat([mean_of(name).flatten(1) for name in engine.network.names], dim=1)
    buffers: Buffers = {name: mean_of(name) for name in engine.network.buffers(1)}
    opt_state = engine.opt_state(x_pd)
    for t in range(config.join_round + 1, config.num_server_rounds + 1):
        engine.enter(t, UPDATE)
        x_pd, buffers, opt_state = engine.fit(x_pd, buffers, opt_state, engine.batches(t))
    losses, accuracies = engine.losses(x_pd, buffers, "test")
    content = {
        "peers": list(newcomers),
        "joined": config.join_round,
        "fine_tuned_test_loss": _numbers(losses),
        "fine_tuned_test_accuracy": _numbers(accuracies),
    }
    atomic.write(run_dir / FILE, json.dumps(content) + "\n")


def _numbers(values: torch.Tensor) -> list[Any]:
    """Return numbers for JSON, with null for those that are not finite."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
