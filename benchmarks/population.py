"""Large populations of which few are awake: `python -m benchmarks.population`.

A round's time is that of whoever is awake: 1,000 peers of which 10 are awake against 10 peers, and
10,000 peers of which 100 are. Rounds are played by the node's cohort under the real strategy and
rule, on random images of the size of MNIST's, 20 a peer; each row is a process of its own, so that
its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from app.config.config import Config
from app.config.registry import METHODS
from app.node.cohort import Cohort
from clients.engine.engine import Engine
from datasets.problem import Problem, Split

EXAMPLES, CLASSES = 20, 10
ROWS = [
    ("fedavg", "mlp", 10, 10), ("fedavg", "mlp", 1_000, 10),
    ("cobo", "mlp", 10, 10), ("cobo", "mlp", 1_000, 10),
    ("fedavg", "lenet", 10_000, 100), ("cobo", "lenet", 10_000, 100),
]  # fmt: skip
"""Method, model, peers, and how many of them are awake in a round."""
WARM, ROUNDS = 3, 10


@dataclass(frozen=True)
class Row:
    """A line of the table; a round is the median of `ROUNDS`."""

    method: str
    model: str
    peers: int
    awake: int
    parameters: int
    start_seconds: float
    round_seconds: float
    peak_gib: float


def problem(peers: int) -> Problem:
    """Random images; every peer has as many of its own."""
    g = np.random.default_rng(0)
    rows = np.arange(peers * EXAMPLES).reshape(peers, EXAMPLES)
    split = Split(tuple(rows), tuple(g.integers(CLASSES, size=(peers, EXAMPLES))))
    nothing = Split((rows[0, :0],) * peers, (rows[0, :0],) * peers)
    return Problem(
        name="random images",
        task="classification",
        inputs=g.integers(0, 256, (peers * EXAMPLES, 1, 28, 28), dtype=np.uint8),
        train=split,
        validation=nothing,
        test=split,
        outputs=CLASSES,
        mean=np.full((1, 1, 1), 127.0),
        std=np.full((1, 1, 1), 64.0),
        samples=np.full(peers, EXAMPLES),
    )


def measure(method: str, model: str, peers: int, awake: int) -> Row:
    """Play some rounds."""
    rounds = WARM + ROUNDS
    config = Config.from_flat(
        {
            "method": method, "model": model, "peers": peers, "num-server-rounds": rounds + 1,
            "local-steps": 5, "batch-size": 10, "device": "cpu", "schedule.kind": "sample",
            "schedule.fraction": awake / peers,
        }
    )  # fmt: skip
    began = time.perf_counter()
    strategy = config.strategy()
    engine = Engine(
        problem(peers), config.network, config.model_options, range(peers), config.training,
        device="cpu", topology=strategy.topology,
    )  # fmt: skip
    rule = METHODS[method].rule(engine, config.options, rounds + 1)
    cohort = Cohort(engine, rule, rounds + 1, schedule=strategy.schedule)
    cohort.begin(1)
    start, seconds, last = time.perf_counter() - began, list[float](), time.perf_counter()
    for this in strategy.each_round(1, rounds, cohort.wants):
        cohort.exchange(this)
        cohort.update(this.t, {})
        cohort.begin(this.t + 1)
        seconds.append(time.perf_counter() - last)
        last = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    typical = float(np.median(seconds[WARM:]))
    return Row(method, model, peers, awake, engine.d, round(start, 2), round(typical, 4),
               round(peak, 2))  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:]:
        named, model_, peers_, awake_ = sys.argv[1:]
        print(json.dumps(asdict(measure(named, model_, int(peers_), int(awake_)))))
    else:
        for row in ROWS:
            command = [sys.executable, "-m", "benchmarks.population", *map(str, row)]
            print(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout, end=""
            )
