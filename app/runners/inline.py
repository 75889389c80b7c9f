"""Carry out a run inside this process: the same relay, wire and node, without Flower.

The invariants make it the same run, number for number, as `flwr run`; it saves the start
of Flower where many short runs follow each other (`python -m app compare`).
"""

from __future__ import annotations

from pathlib import Path

from app.config.config import Config
from app.node.node import Node
from app.runs.recorder import RunRecorder
from strategies.inprocess import InProcessTransport
from strategies.relay.broker import Broker

JOIN_SECONDS = 1.0  # the node is there from the beginning


def run(config: Config) -> None:
    """Run `config`, which knows its directory, or go on with it where `config.resume` says so.

    Raises
    ------
    RelayError : the node failed; progress.json says why, too.
    """
    directory = Path(config.run_dir)
    recorder = RunRecorder(directory, config.peers, config.num_server_rounds, resume=config.resume)
    try:
        transport = InProcessTransport([Node(config, range(config.peers), directory)])
        Broker(config.strategy(), transport, recorder, recorder.ledger, JOIN_SECONDS).run()
    except BaseException as error:
        recorder.fail(f"{type(error).__name__}: {error}")
        raise
    recorder.finish()
