"""FedAvg as whole commands to time: a plain loop, a stock Flower app, Coterie."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar


def write_data(flat: Mapping[str, Scalar], directory: Path) -> None:
    """Write each peer's normalised images and labels to a file."""
    problem = problem_of(Config.from_flat(dict(flat)))
    for number in range(len(problem.samples)):
        arrays = {}
        for suffix, split in (("", problem.train), ("_test", problem.test)):
            images = problem.inputs[split.rows[number]].astype(np.float32)
            arrays["x" + suffix] = ((images - problem.mean) / problem.std).astype(np.float32)
            arrays["y" + suffix] = np.asarray(split.targets[number], dtype=np.int64)
        np.savez(directory / f"{number}.npz", **arrays)  # type: ignore[arg-type]


def ways(flat: Mapping[str, Scalar], rounds: int, awake: int, data: Path) -> dict[str, list[str]]:
    """Return the commands by name, for a run's configuration."""
    python = [sys.executable, "-m"]
    there = [str(each) for each in (flat["model"], data, flat["peers"], awake, rounds)]
    last = {"num-server-rounds": rounds, "evaluate-every": rounds}
    return {
        "loop": [*python, "benchmarks.peers.loop", *there],
        "flower": [*python, "benchmarks.peers.stock", *there],
        "inline": [*python, "coterie", "run", *(f"{k}={v}" for k, v in {**flat, **last}.items())],
    }


class Taken(NamedTuple):
    """Wall-clock and processor time of a command, and its final accuracy."""

    seconds: float
    processor: float
    accuracy: float


def carried_out(command: list[str], threads: int | None = None) -> Taken:
    """Time a command.

    Parameters
    ----------
    threads : int or None
        Number of torch threads; None: the command's default.
    """
    environment = {**os.environ} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with tempfile.TemporaryDirectory() as out:
        place = ["--out", out] if "coterie" in command else []
        start, used = perf_counter(), _used()
        done = subprocess.run(
            [*command, *place], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        taken = perf_counter() - start, _used() - used
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        accuracy = _reported(Path(out)) if place else float(done.stdout.split()[-1])
    return Taken(*taken, accuracy)


def _reported(out: Path) -> float:
    """Return the accuracy of the only run in a folder, mean over peers."""
    (metrics,) = out.glob("*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    last = [float(row["test_accuracy"]) for row in rows if row["round"] == rows[-1]["round"]]
    return statistics.mean(last)


def _used() -> float:
    of = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of.ru_utime + of.ru_stime


def show(network: str, rounds: int, taken: Mapping[str, list[Taken]]) -> None:
    """Print a line per command: medians over turns, and ratios within a turn."""
    for way, values in taken.items():
        clock, processor, accuracy = zip(*values, strict=True)
        pairs = zip(taken["loop"], clock, strict=True)
        ratios = sorted(of_loop.seconds / ours for of_loop, ours in pairs)
        row = {
            "network": network, "rounds": rounds, "way": way,
            "seconds": round(statistics.median(clock), 1),
            "rounds a second": round(rounds / statistics.median(clock), 2),
            "processor": round(statistics.median(processor), 1),
            "times as fast as the loop": round(statistics.median(ratios), 2),
            "from": round(ratios[0], 2), "to": round(ratios[-1], 2),
            "accuracy": round(statistics.median(accuracy), 3),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
