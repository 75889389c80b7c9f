"""Large populations with few awake peers: `python -m benchmarks.population [PART ...]`.

`flute` and `pfl` are the settings in which FLUTE and pfl-research compare simulators, with the
available images (Fashion-MNIST, dealt evenly): whole commands, from start to report, of a
plain PyTorch loop, a stock Flower app with a client for each peer, and Coterie in one process. All
evaluate every peer before the first round and after the last. They alternate; ratios are of the
same turn.

`large` is Coterie alone, from 10 to 10,000 peers, each row in a separate process: seconds until the
first round begins (data, models, evaluation and checkpoint of all peers), of a round, and of the
end (the same evaluation, a model file per peer); peak memory, and the disk space of the
checkpoints. `large` counts processor seconds, which depend less on other load.

`cluster` is one run of 1,000 peers, 100 awake per round, in one process and on a Ray cluster of
four nodes (on this machine, with a core each): seconds, seconds per round with an
evaluation every ten rounds, the largest memory of a process, and the largest sum of all processes
that the run started, without memory that they share. `nodes` is the same on this machine, for 20
peers in one process and on 2, 8 and 20 nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.engine import machine
from benchmarks.peers.commands import Taken, carried_out, show, ways, write_data
from coterie.app.config.config import Config
from coterie.app.config.preflight import check
from coterie.app.config.schema import Scalar
from coterie.app.runners import inline
from coterie.app.runs import progress, rundir
from tests.machines import machines

IMAGES: dict[str, Scalar] = {
    "dataset": "benchmarks.dealt:images", "partition.kind": "natural", "partition.min-samples": 1,
    "batch-size": 10, "learning-rate": 0.05, "device": "cpu", "schedule.kind": "sample",
    "evaluate-peers": "participants",
}  # fmt: skip
SETTINGS: dict[str, tuple[int, int, int, dict[str, Scalar]]] = {
    "flute": (1000, 10, 100, {"model": "linear", "partition.samples-per-peer": 60}),
    "pfl": (1000, 50, 60, {"model": "lenet", "partition.samples-per-peer": 50}),
}
"""Number of peers, awake peers per round, rounds, and the rest of the configuration."""
LARGE: list[tuple[str, str, int, int]] = [
    ("fedavg", "mlp", 10, 10), ("fedavg", "mlp", 1_000, 10),
    ("cobo", "mlp", 10, 10), ("cobo", "mlp", 1_000, 10),
    ("fedavg", "lenet", 10_000, 100), ("cobo", "lenet", 10_000, 100),
]  # fmt: skip
"""Method, model, number of peers, and awake peers per round."""
SPREAD: dict[str, Scalar] = {
    **IMAGES, "method": "fedavg", "model": "mlp", "peers": 1_000, "local-steps": 5,
    "schedule.fraction": 0.1,
}  # fmt: skip
ROUNDS, TURNS = 10, 1
GIB = 2.0**30
_MARK = "COTERIE_BENCHMARK"
"""Variable in the environment of all processes that `spread` starts."""


def compared(setting: str, peers: int, rounds: int, turns: int, names: Sequence[str]) -> None:
    """Time the commands of a setting, and print a line for each."""
    _, awake, _, more = SETTINGS[setting]
    awake = min(awake, peers)
    flat: dict[str, Scalar] = {
        **IMAGES, **more, "method": "fedavg", "peers": peers, "local-epochs": 1,
        "schedule.fraction": awake / peers,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        write_data(flat, Path(directory))
        commands = ways(flat, rounds, awake, Path(directory))
        taken: dict[str, list[Taken]] = {name: [] for name in names}
        for _ in range(turns):
            for name in names:
                taken[name].append(carried_out(commands[name]))
    show(str(flat["model"]), rounds, taken)


def measure(of: tuple[str, str, int, int], rounds: int) -> dict[str, Any]:
    """Measure one run of `LARGE` in this process, without its report."""
    method, model, peers, awake = of
    ends, files = list[float](), 0
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory, "run")
        config = Config.from_flat(
            {
                **IMAGES, "method": method, "model": model, "peers": peers, "local-steps": 5,
                "num-server-rounds": rounds, "evaluate-every": rounds, "run-dir": str(run),
                "schedule.fraction": awake / peers,
                # Each peer that is awake meets two others on average.
                "cobo.sampling": "constant", "cobo.probability": min(1.0, 2 / awake),
            }
        )  # fmt: skip

        def on_round(now: Mapping[str, Any]) -> None:
            nonlocal files
            if now["round"] == len(ends):  # the first and last one also record metrics afterwards
                ends.append(time.process_time())
            if now["status"] == "finished":  # its checkpoints are deleted next
                files = sum(each.stat().st_size for each in run.glob("nodes/*/*.state"))

        began = time.process_time()
        rundir.create(config, check(config))
        inline.run(config, on_round)
        taken = [after - before for before, after in pairwise(ends)]
    return {
        "method": method, "model": model, "peers": peers, "awake": awake,
        "start": round(ends[0] - began + taken[0] - median(taken[1:]), 1),
        "round": round(median(taken[1:]), 3),
        "end": round(time.process_time() - ends[-1], 1),
        "GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2),
        "MiB of checkpoints": round(files * 1024 / GIB, 1),
    }  # fmt: skip


def spread(peers: int, rounds: int) -> None:
    """Time one run in one process and on four nodes of a Ray cluster, and print a line for each."""
    os.environ[_MARK] = str(os.getpid())
    with machines(4, 400 << 20) as environment:
        for nodes in (0, 4):
            _row(SPREAD, nodes, peers, rounds, environment if nodes else dict(os.environ))


def by_nodes(peers: int, rounds: int) -> None:
    """Time one run in one process and on nodes of this machine, and print a line for each."""
    os.environ[_MARK] = str(os.getpid())
    for nodes in (0, 2, 8, 20):
        _row({**SPREAD, "schedule.fraction": 1.0}, nodes, peers, rounds, dict(os.environ))


def _row(
    flat: Mapping[str, Scalar], nodes: int, peers: int, rounds: int, env: dict[str, str]
) -> None:
    """Run once on a number of nodes, 0 for one process, and print what it took."""
    flat = {**flat, "peers": peers, "num-server-rounds": 3 * rounds, "evaluate-every": rounds}
    command = [sys.executable, "-m", "coterie", "run", *(f"{k}={v}" for k, v in flat.items())]
    command += ["--nodes", str(nodes)] if nodes else []
    print(
        json.dumps({"nodes": nodes, "peers": peers, **_watched(command, env, rounds)}), flush=True
    )


def _watched(command: list[str], environment: dict[str, str], rounds: int) -> dict[str, float]:
    """Run a command and look at it every half second; return seconds and GiB of memory.

    Parameters
    ----------
    rounds : int
        A third of the run's. The first third includes the start, the last one writes the models.
    """
    largest = together = 0
    others: set[int] = set()
    ends: dict[int, float] = {}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as out,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*command, "--out", out, "--name", "run"],
            env=environment, stdout=log, stderr=subprocess.STDOUT,
        ) as run,
    ):  # fmt: skip
        while run.poll() is None:
            held = []
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.pid not in others:
                        if process.environ().get(_MARK) == str(os.getpid()):
                            held.append(process.memory_full_info().uss)
                        else:
                            others.add(process.pid)
            largest, together = max(largest, *held, 0), max(together, sum(held))
            now = progress.read(Path(out, "run"))
            ends[now.get("round", 0)] = now.get("seconds", 0.0)
            time.sleep(0.5)
        if run.returncode:
            log.seek(0)
            sys.exit(log.read())
    seen = sorted(ends)
    first, second = np.interp((rounds, 2 * rounds), seen, [ends[each] for each in seen])
    return {
        "seconds": round(time.monotonic() - began, 1),
        "round": round((second - first) / rounds, 2),
        "GiB of a process": round(largest / GIB, 2),
        "GiB": round(together / GIB, 2),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*SETTINGS, "large", "cluster", "nodes"])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--rounds", type=int, help="other than the setting's")
    parser.add_argument("--peers", type=int, help="the same")
    parser.add_argument("--ways", default="loop,flower,inline")
    parser.add_argument("--row", type=int, help="of `large`, in this process")
    options = parser.parse_args(arguments)
    if options.row is not None:
        print(json.dumps(measure(LARGE[options.row], options.rounds or ROUNDS)))
        return
    print(json.dumps(machine()), flush=True)
    for part in options.parts:
        if part in SETTINGS:
            peers, _, rounds, _ = SETTINGS[part]
            sizes = options.peers or peers, options.rounds or rounds
            compared(part, *sizes, options.turns, options.ways.split(","))
            continue
        if part == "cluster":
            spread(options.peers or 1_000, options.rounds or ROUNDS)
            continue
        if part == "nodes":
            by_nodes(options.peers or 20, options.rounds or 5 * ROUNDS)
            continue
        for number in range(len(LARGE)):
            command = [sys.executable, "-m", "benchmarks.population", "--row", str(number)]
            if options.rounds:
                command += ["--rounds", str(options.rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(done.stdout, end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
