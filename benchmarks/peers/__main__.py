"""FedAvg, whole commands from start to report: `python -m benchmarks.peers [mlp] [cnn]`.

The same split of Fashion-MNIST (20 peers with 300 images), network and steps (batches of 10, one
epoch a round) as a plain PyTorch loop, as a stock Flower app with a client for each peer, and as
Coterie in one process and on two nodes; all evaluate before the first round and after the last. In
turns; ratios are of the same turn. On a machine that others use, processor seconds compare loop and
inline; those of Ray's processes are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from app.config.config import Config
from app.config.preflight import problem_of
from app.config.root import ROOT
from app.config.schema import Scalar
from benchmarks.engine import machine

PEERS, TURNS = 20, 3
ROUNDS = {"mlp": 60, "cnn": 6}
COMMON: dict[str, Scalar] = {
    "method": "fedavg", "dataset": "fashion-mnist", "peers": PEERS, "batch-size": 10,
    "local-epochs": 1, "learning-rate": 0.05, "mlp.hidden": "100", "partition.kind": "dirichlet",
    "partition.alpha": 1.0, "partition.samples-per-peer": 300,
}  # fmt: skip


def write_data(directory: Path) -> None:
    """Each peer's images and labels as a file of its own, normalised."""
    problem = problem_of(Config.from_flat(COMMON))
    for number in range(PEERS):
        arrays = {}
        for suffix, split in (("", problem.train), ("_test", problem.test)):
            images = problem.inputs[split.rows[number]].astype(np.float32)
            arrays["x" + suffix] = ((images - problem.mean) / problem.std).astype(np.float32)
            arrays["y" + suffix] = np.asarray(split.targets[number], dtype=np.int64)
        np.savez(directory / f"{number}.npz", **arrays)  # type: ignore[arg-type]


def ways(network: str, rounds: int, data: Path) -> dict[str, list[str]]:
    """The commands by name."""
    python = [sys.executable, "-m"]
    there = [network, str(data), str(PEERS), str(rounds)]
    flat = {**COMMON, "model": network, "num-server-rounds": rounds, "evaluate-every": rounds}
    ours = [*python, "app", "run", *(f"{key}={value}" for key, value in flat.items())]
    return {
        "loop": [*python, "benchmarks.peers.loop", *there],
        "flower": [*python, "benchmarks.peers.stock", *there],
        "inline": ours,
        "two nodes": [*ours, "--nodes", "2"],
    }


def seconds(command: list[str], network: str, way: str) -> tuple[float, float]:
    """Time of a command, by the clock and of the processor."""
    threads = "1" if network == "mlp" and way == "loop" else None  # faster so
    environment = {**os.environ} | ({"OMP_NUM_THREADS": threads} if threads else {})
    with tempfile.TemporaryDirectory() as out:
        place = ["--out", out] if "app" in command else []
        start, used = time.perf_counter(), _used()
        done = subprocess.run(
            [*command, *place], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        taken = time.perf_counter() - start, _used() - used
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return taken


def _used() -> float:
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*ROUNDS])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--rounds", type=int, help="fewer, to try it")
    given = parser.parse_args()
    print(json.dumps(machine()), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        write_data(Path(directory))
        for network in given.networks:
            rounds = given.rounds or ROUNDS[network]
            commands = ways(network, rounds, Path(directory))
            taken: dict[str, list[tuple[float, float]]] = {way: [] for way in commands}
            for _ in range(given.turns):
                for way, command in commands.items():
                    taken[way].append(seconds(command, network, way))
            for way, values in taken.items():
                clock, processor = zip(*values, strict=True)
                pairs = zip(taken["loop"], clock, strict=True)
                ratios = sorted(of_loop / own for (of_loop, _), own in pairs)
                row = {
                    "network": network, "rounds": rounds, "way": way,
                    "seconds": round(statistics.median(clock), 1),
                    "processor": round(statistics.median(processor), 1),
                    "times as fast as the loop": round(statistics.median(ratios), 2),
                    "from": round(ratios[0], 2), "to": round(ratios[-1], 2),
                }  # fmt: skip
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
