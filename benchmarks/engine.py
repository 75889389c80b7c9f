"""Training of n peers: the stacked engine against a plain PyTorch loop over peers.

Both draw minibatches from the same data and take SGD steps, in turns and in one process; the
ratio is the median over turns of (steps a second of the engine) / (of the loop). The loop is a
well-tuned PyTorch loop: a module and a torch.optim.SGD for each peer,
data on the device; of one thread or all, images channels-first or channels-last, and the optimizer
plain, foreach or fused: the fastest variant counts.

Needs torch and NumPy only: python -m benchmarks.engine [NETWORK ...]
On a machine that others use, too: OMP_NUM_THREADS=1 python -m benchmarks.engine --cpu-time
With --out FILE, rows are stored there: an interrupted benchmark continues with the next row, and
the stored rows are printed as the table of docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from coterie.clients.engine.engine import Engine
from coterie.clients.models.build import build
from coterie.clients.models.options import MODELS, Adaptation, MlpOptions
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split

NETWORKS: dict[str, tuple[str, tuple[int, ...], object, tuple[int, ...]]] = {
    "mlp-64": ("mlp", (1, 8, 8), MlpOptions("64"), (1, 8, 20, 100)),
    "mlp-784": ("mlp", (1, 28, 28), MlpOptions("100"), (1, 8, 20, 100)),
    "lenet": ("lenet", (3, 32, 32), None, (1, 8, 20, 100)),
    "cnn": ("cnn", (1, 28, 28), None, (1, 8, 20, 100)),
    "resnet9": ("resnet9", (3, 32, 32), None, (1, 8, 20, 100)),
}
"""Name -> model, shape of an example, options, numbers of peers."""
BATCHES = (10, 32, 128)
EXAMPLES = 256  # of each peer, in a pool that all share
POOL = 1024
TURNS, FEWER = 5, 3
LONG = 5.0  # seconds of a step of all peers, from which on there are fewer turns
TURN_SECONDS, TRY_SECONDS = 0.25, 0.02
ROUND = 5  # steps that a turn has at least, as a round would
RATE = 0.01
THREADS = torch.get_num_threads()
clock = time.perf_counter


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes
    ----------
    loop, stacked : float
        SGD steps per second, summed over peers; median over turns.
    ratio : float
        Median of stacked / loop of the same turn.
    lowest, highest : float
        Range of this ratio.
    best : float
        Fastest turn of the engine / fastest turn of the loop; for shared machines.
    load : float
        Load of the machine over the last minute.
    """

    device: str
    network: str
    peers: int
    batch: int
    loop: float
    stacked: float
    ratio: float
    lowest: float
    highest: float
    best: float
    load: float


def problem(shape: tuple[int, ...], peers: int) -> Problem:
    """Draw random images and labels."""
    g = np.random.default_rng(0)
    rows = tuple(np.sort(g.choice(POOL, EXAMPLES, replace=False)) for _ in range(peers))
    split = Split(rows, tuple(g.integers(10, size=EXAMPLES) for _ in range(peers)))
    none = Split(tuple(r[:0] for r in rows), tuple(r[:0] for r in rows))
    inputs = g.normal(size=(POOL, *shape)).astype(np.float32)
    unit = np.ones((1,) * len(shape))
    samples = np.full(peers, EXAMPLES)
    return Problem(
        "random", "classification", inputs, split, none, none, 10, 0 * unit, unit, samples
    )


def engine_steps(
    data: Problem,
    model: str,
    options: object,
    batch: int,
    device: str,
    **keys: Any,
) -> Callable[[int], None]:
    """Return a function that takes a number of steps of every peer with the engine."""
    training = Training(batch_size=batch, learning_rate=RATE)
    engine = Engine(data, model, options, range(data.peers), training, device=device, **keys)
    x, buffers = engine.initial()
    state = [x]
    rounds = iter(range(10**9))

    def steps(count: int) -> None:
        torch.set_num_threads(THREADS)
        opt_state = engine.opt_state(state[0])
        drawn = engine.batches(next(rounds), steps=count, epochs=0)
        state[0] = engine.fit(state[0], buffers, opt_state, drawn).x

    return steps


def loop_steps(
    data: Problem,
    model: str,
    options: object,
    batch: int,
    device: str,
    adaptation: Adaptation | None = None,
) -> Callable[[int], None]:
    """Return a function that takes a number of steps of every peer, peer by peer."""
    table = MODELS[model].options
    options = options or (table and table())
    pool = torch.tensor(data.inputs, device=device)
    shape = data.inputs.shape[1:]
    targets = [torch.tensor(y, device=device) for y in data.train.targets]

    def loop(
        peers: int, layout: torch.memory_format, how: dict[str, bool]
    ) -> Callable[[int], None]:
        laid_out = pool.to(memory_format=layout)
        inputs = [laid_out[torch.tensor(rows)] for rows in data.train.rows[:peers]]
        made = model, options, data.task, shape, data.outputs, adaptation
        modules = [build(*made).to(device).to(memory_format=layout) for _ in range(peers)]
        trained = [[w for w in m.parameters() if w.requires_grad] for m in modules]
        optimizers = [torch.optim.SGD(of, lr=RATE, **how) for of in trained]

        def run(count: int) -> None:
            for x, y, module, optimizer in zip(
                inputs, targets[:peers], modules, optimizers, strict=True
            ):
                for _ in range(count):
                    rows = torch.randperm(len(y), device=device)[:batch]
                    optimizer.zero_grad()
                    scores = module(x[rows])
                    F.cross_entropy(scores.flatten(0, -2), y[rows].flatten()).backward()
                    optimizer.step()

        return run

    layouts = [
        torch.contiguous_format,
        *([torch.channels_last] if len(shape) == 3 and model != "mlp" else []),
    ]
    hows: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
    ways = [(loop(1, *way), way) for way in product(layouts, hows)]

    def on(tried: tuple[tuple[Callable[[int], None], Any], int]) -> float:
        (one, _), threads = tried
        torch.set_num_threads(threads)
        one(1)
        count = max(1, round(TRY_SECONDS / seconds(one, 1, device)))
        return min(seconds(one, count, device) / count for _ in range(3))

    (_, way), threads = min(product(ways, sorted({1, THREADS})), key=on)
    run = loop(data.peers, *way)

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        run(count)

    return steps


def seconds(steps: Callable[[int], None], count: int, device: str) -> float:
    """Return the time of `count` steps of every peer."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    steps(count)
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def compare(device: str, network: str, peers: int, batch: int) -> Row:
    """Measure one row: engine and loop alternate."""
    model, shape, options, _ = NETWORKS[network]
    data = problem(shape, peers)
    ways = [make(data, model, options, batch, device) for make in (loop_steps, engine_steps)]
    counts, many = [], TURNS
    for way in ways:
        once = seconds(way, 1, device)  # warm-up
        if once < LONG:
            once = seconds(way, 1, device)
        else:
            many = FEWER
        counts.append(max(ROUND, round(TURN_SECONDS / once)))
    turns = [
        [
            count * peers / seconds(way, count, device)
            for way, count in zip(ways, counts, strict=True)
        ]
        for _ in range(many)
    ]
    columns = [*zip(*turns, strict=True)]
    loop, stacked = (round(statistics.median(column), 1) for column in columns)
    ratios = sorted(round(stacked / loop, 2) for loop, stacked in turns)
    best = round(max(columns[1]) / max(columns[0]), 2)
    middle, load = statistics.median(ratios), round(os.getloadavg()[0], 1)
    return Row(
        device, network, peers, batch, loop, stacked, middle, ratios[0], ratios[-1], best, load
    )


def rows(networks: Iterable[str], known: Iterable[Row] = ()) -> Iterator[Row]:
    """Yield the comparisons of some networks that are not known yet and that fit this machine."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    there = {(row.device, row.network, row.peers, row.batch) for row in known}
    for device, network in product(devices, networks):
        for peers, batch in product(NETWORKS[network][3], BATCHES):
            if (device, network, peers, batch) not in there:
                yield compare(device, network, peers, batch)


def table(results: Iterable[Row]) -> Iterator[str]:
    """Yield the ratios as Markdown (rows: networks and peers, columns: batches)."""
    ratios: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in results:
        ratios.setdefault((row.device, row.network, row.peers), {})[row.batch] = row.ratio
    yield "| device | network | peers | " + " | ".join(f"batch {b}" for b in BATCHES) + " |"
    yield "|---|---|---|" + "---|" * len(BATCHES)
    for (device, network, peers), of_batch in ratios.items():
        cells = (str(of_batch.get(batch, "")) for batch in BATCHES)
        yield f"| {device} | {network} | {peers} | " + " | ".join(cells) + " |"


def machine() -> dict[str, Any]:
    """Return the properties of the machine that affect the numbers."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": gpu,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*NETWORKS])
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure the time of the process, not of the clock"
    )
    parser.add_argument("--out", type=Path, help="file of rows; an existing one is continued")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        clock = time.process_time
    print(json.dumps(machine()), flush=True)
    known: list[Row] = []
    if arguments.out and arguments.out.exists():
        known = [Row(**json.loads(line)) for line in arguments.out.read_text().splitlines()]
    for row in rows(arguments.networks, known):
        line = json.dumps(asdict(row))
        print(line, flush=True)
        known.append(row)
        if arguments.out:
            with arguments.out.open("a") as kept:
                kept.write(line + "\n")
    print(*table(known), sep="\n")
