"""Overhead of a round besides the peers' own work: relay, wire and disk, and Flower.

The same run (8 peers on digits, one local step a round) is timed three ways: one node that hosts
every peer and plays its rounds without the relay; two nodes in this process, whose requests and
letters are encoded as for Flower; and `coterie run` on Flower with one and two nodes. Two
nodes do the same work as one, so their additional time is the cost of the relay.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from coterie.app.config.config import Config
from coterie.app.node.node import Node
from coterie.app.runs import progress
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit

METHODS = {"local": 1, "fedavg": 1, "cobo": 2}
"""Method -> messages to each node in a round."""
INLINE_ROUNDS = 40
FLOWER_ROUNDS = 30
FIRST = 5  # rounds before the clock starts: workers and caches get warm
PEERS = 8


@dataclass(frozen=True)
class Row:
    """Milliseconds per round, overhead of two nodes over one, and the machine's load."""

    way: str
    method: str
    messages: int
    round_ms: float
    added_ms: float | None
    load: float


class Clock:
    """Recorder of the time of each commit."""

    def __init__(self) -> None:
        self.ticks: dict[int, float] = {}

    def round(self, commit: Commit) -> None:
        """Note the time."""
        self.ticks[commit.ledger.round] = time.perf_counter()


def flat(method: str, rounds: int, every: int) -> dict[str, Any]:
    """Return the run's configuration."""
    return {
        "method": method, "peers": PEERS, "num-server-rounds": rounds, "local-steps": 1,
        "evaluate-every": every, "device": "cpu",
    }  # fmt: skip


def a_round(ticks: dict[int, float]) -> float:
    """Return milliseconds per round: the median interval between ticks after round FIRST."""
    ends = sorted(t for t in ticks if t >= FIRST)
    return 1e3 * statistics.median((ticks[b] - ticks[a]) / (b - a) for a, b in pairwise(ends))


def inline(method: str, nodes: int) -> float:
    """Return milliseconds per round in this process."""
    config = Config.from_flat(flat(method, INLINE_ROUNDS + FIRST, FIRST))
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        hosts = [
            Node(config, share.tolist(), Path(directory))
            for share in np.array_split(np.arange(PEERS), nodes)
        ]
        Broker(config.strategy(), InProcessTransport(hosts), clock).run()
    return a_round(clock.ticks)


def flower(method: str, nodes: int) -> float:
    """Return milliseconds per round of `coterie run`, by the relay's clock."""
    settings = flat(method, FLOWER_ROUNDS + FIRST, FIRST)
    ticks: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        pairs = [f"{key}={value}" for key, value in settings.items()]
        command = [sys.executable, "-m", "coterie", "run", *pairs]
        command += ["--nodes", str(nodes), "--out", directory, "--name", "run"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ) as process:
            while process.poll() is None:
                now = progress.read(Path(directory, "run"))
                if now.get("round") and now["round"] not in ticks:
                    ticks[now["round"]] = now["seconds"]
                time.sleep(0.02)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed")
    return a_round(ticks)


def rows() -> Iterator[Row]:
    """Yield all timings."""
    for way, timed in (("in this process", inline), ("Flower", flower)):
        for method in METHODS if way != "Flower" else ("cobo",):
            alone, shared = (timed(method, nodes) for nodes in (1, 2))
            load = round(os.getloadavg()[0], 1)
            yield Row(f"{way}, 1 node", method, 0, round(alone, 1), None, load)
            yield Row(
                f"{way}, 2 nodes", method, 2 * METHODS[method], round(shared, 1),
                round(shared - alone, 1), load,
            )  # fmt: skip
