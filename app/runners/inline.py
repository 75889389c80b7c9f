"""Carry out a run inside this process: the same relay, wire and node, without Flower.

The invariants make it the same run, number for number, as `flwr run`, without the start of Flower
and Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.node.node import Node
from app.runs.recorder import RunRecorder
from strategies.flower.transport import InProcessTransport

JOIN_SECONDS = 1.0  # the node is there from the beginning


def run(config: Config, watch: Callable[[Mapping[str, Any]], None] | None = None) -> None:
    """Run `config`, which knows its directory, or go on with it where `config.resume` says so.

    Parameters
    ----------
    watch : is told after every round what progress.json says; of a round that nobody measures, the
        number alone is new.

    Raises
    ------
    RelayError : the node failed; progress.json says why, too.
    """
    directory, rounds = Path(config.run_dir), config.num_server_rounds
    recorder = RunRecorder(directory, config.peers, rounds, resume=config.resume, watch=watch)

    def on_round(t: int) -> None:
        if watch is not None:
            watch({**recorder.progress, "round": t})

    try:
        node = Node(config, range(config.peers), directory, on_round=on_round)
        transport = InProcessTransport([node])
        config.strategy().broker(transport, recorder, recorder.ledger, JOIN_SECONDS)
    except BaseException as error:
        recorder.fail(f"{type(error).__name__}: {error}")
        raise
    recorder.finish()
