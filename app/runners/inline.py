"""Carry out a run inside this process: the same relay, wire and node, without Flower.

The invariants make it the same run, number for number, as `flwr run`, without the start of Flower
and Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.node.node import Node
from coterie.app.runners.newcomers import LateTransport, write_control
from coterie.app.runs.recorder import RunRecorder
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.relay.broker import Broker

JOIN_SECONDS = 1.0  # the node is there from the beginning


def run(config: Config, watch: Callable[[Mapping[str, Any]], None] | None = None) -> None:
    """Run `config`, which knows its directory, or go on with it where `config.resume` says so.

    Parameters
    ----------
    watch : called after every round with what progress.json says; in a round without evaluation
        only the number changes.

    Raises
    ------
    RelayError : the node failed; progress.json says why, too.
    """
    directory, rounds = Path(config.run_dir), config.num_server_rounds
    recorder = RunRecorder(
        directory, config.peers, rounds, resume=config.resume, watch=watch,
        run=config_digest_of(config),
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
            Broker(config.strategy(), transport, recorder, recorder.ledger, JOIN_SECONDS).run()
    except BaseException as error:
        recorder.fail(f"{type(error).__name__}: {error}")
        raise
    recorder.finish()


def _run_with_newcomers(config: Config, recorder: RunRecorder) -> None:
    """The same, with a node of peers that come late."""
    others = [peer for peer in range(config.peers) if peer not in config.newcomers]
    directory = Path(config.run_dir)
    nodes = [Node(config, peers, directory) for peers in (others, config.newcomers)]
    transport = LateTransport(nodes, lambda: recorder.ledger.round, config.joins)
    Broker(config.strategy(), transport, recorder, recorder.ledger, 0.0, len(others)).run()
    write_control(config)
