"""Execution of a run inside this process: the same relay, wire and node, without Flower.

It gives the same numbers as `flwr run`, without starting Flower and Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.node.node import Node
from coterie.app.runners import machine
from coterie.app.runners.machine import Meter
from coterie.app.runners.newcomers import LateTransport, write_control
from coterie.app.runs.recorder import RunRecorder
from coterie.clients.engine.engine import device_of
from coterie.errors import line_of
from coterie.strategies.errors import RelayError
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.relay.broker import Broker

JOIN_SECONDS = 1.0  # the node is available from the start


def run(
    config: Config,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
    *,
    is_alone: bool = True,
) -> None:
    """Run `config`, whose directory is set, or continue it if `config.resume` is set.

    `watch` is called after each round with the content of progress.json; in a round without
    evaluation only the round changes. `is_alone`: no other run of this program shares the machine,
    and its energy is measured. RelayError: the node failed; progress.json states the reason, too.
    PartError: the method, the model or the data set raised an error.
    """
    directory, rounds = Path(config.run_dir), config.num_server_rounds
    gpu = _gpu(config)
    meter = Meter(machine.POWERCAP if is_alone and not gpu else None)
    recorder = RunRecorder(
        directory, config.peers, rounds, resume=config.resume, watch=watch,
        run=config_digest_of(config), machine=machine.description(gpu), joules=meter.joules,
    )  # fmt: skip

    def on_round(t: int) -> None:
        if watch is not None:
            watch({**recorder.progress, "round": t})

    try:
        with meter:
            if config.newcomers:
                _run_with_newcomers(config, recorder)
            else:
                node = Node(config, range(config.peers), directory, on_round=on_round)
                transport = InProcessTransport([node])
                _broker(config, transport, recorder, JOIN_SECONDS)
    except Exception as error:
        recorder.fail(line_of(error))
        raise
    except BaseException:  # Ctrl-C, or a sweep that will continue the run elsewhere
        recorder.stop()
        raise
    recorder.finish()


def _gpu(config: Config) -> str:
    """Return the name of the GPU that computes the run; empty if processors do."""
    is_used = device_of(config.compute.device, 0).type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name(0) if is_used else ""


def _run_with_newcomers(config: Config, recorder: RunRecorder) -> None:
    """Run with a second node, whose peers join late."""
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
