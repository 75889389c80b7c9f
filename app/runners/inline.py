"""Execution of a run inside this process: the same relay, wire and node, without Flower.

It gives the same numbers as `flwr run`, without starting Flower and Ray.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.preflight import problem_of
from coterie.app.node.assembly import engine_of
from coterie.app.node.node import Node
from coterie.app.runners import machine
from coterie.app.runs import atomic, files
from coterie.app.runs.recorder import RunRecorder
from coterie.clients.engine.engine import device_of
from coterie.clients.engine.network import Buffers
from coterie.clients.engine.privacy import UPDATE
from coterie.errors import line_of
from coterie.strategies.errors import RelayError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Handler
from coterie.strategies.relay.broker import Broker


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
    # Newcomers train with the method. This control needs only the others' models, and trains for
    # the same number of rounds: what a method is worth to a newcomer beyond a good start.
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
    atomic.write(run_dir / files.NEWCOMERS, json.dumps(content) + "\n")


def _numbers(values: torch.Tensor) -> list[Any]:
    """Return numbers for JSON, with null for those that are not finite."""
    return [value if np.isfinite(value) else None for value in values.tolist()]


def run(config: Config, watch: Callable[[Mapping[str, Any]], None] | None = None) -> None:
    """Run `config`, whose directory is set, or continue it if `config.resume` is set.

    `watch` is called after each round with the content of progress.json; in a round without
    evaluation only the round changes. RelayError: the node failed, see progress.json. PartError:
    the method, the model or the data set raised an error.
    """
    directory, rounds = Path(config.run_dir), config.num_server_rounds
    is_on_gpu = device_of(config.compute.device, 0).type == "cuda" and torch.cuda.is_available()
    gpu = torch.cuda.get_device_name(0) if is_on_gpu else ""
    recorder = RunRecorder(
        directory, config.peers, rounds, resume=config.resume, watch=watch,
        run=config_digest_of(config), machine=machine.description(gpu),
    )  # fmt: skip

    def on_round(t: int) -> None:
        if watch is not None:
            watch({**recorder.progress, "round": t})

    try:
        if config.newcomers:
            _run_with_newcomers(config, recorder)
        else:
            node = Node(config, range(config.peers), directory, on_round=on_round)
            transport = InProcessTransport([node])
            _broker(config, transport, recorder, 1.0)  # it is available from the start
    except Exception as error:
        recorder.fail(line_of(error))
        raise
    except BaseException:  # Ctrl-C, or a sweep that will continue the run elsewhere
        recorder.stop()
        raise
    recorder.finish()


def _run_with_newcomers(config: Config, recorder: RunRecorder) -> None:
    late = config.newcomers
    others = [peer for peer in range(config.peers) if peer not in late]
    directory = Path(config.run_dir)
    nodes = [Node(config, peers, directory) for peers in (others, late)]
    transport = LateTransport(nodes, lambda: recorder.ledger.round, config.join_round)
    _broker(config, transport, recorder, 0.0, len(others))
    write_control(config)


def _broker(
    config: Config,
    transport: InProcessTransport,
    recorder: RunRecorder,
    join_timeout: float,
    quorum: int = 0,
) -> None:
    """Run all rounds; the cause of a RelayError is the error of the node that failed."""
    broker = Broker(
        config.strategy(), transport, recorder, recorder.ledger, join_timeout, quorum,
        patience=config.patience,
    )  # fmt: skip
    try:
        broker.run()
    except RelayError as error:
        raise error from transport.error
