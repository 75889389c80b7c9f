"""Training of n peers: the stacked engine against a plain PyTorch loop over peers.

Both draw minibatches from the same data and take SGD steps, in turns and in one process; the
ratio is the median over turns of (steps a second of the engine) / (of the loop). The loop is what
every PyTorch user would write: a module and a torch.optim.SGD for each peer, data on the device, on
one thread or all, whichever is faster.

Needs torch and NumPy only: python -m benchmarks.engine
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from clients.engine import chunks
from clients.engine.engine import Engine
from clients.models.build import build
from clients.models.options import MODEL_OPTIONS
from clients.training import Training
from datasets.problem import Problem, Split

NETWORKS = {
    "mlp 64-64-10": ("mlp", (1, 8, 8)),
    "mlp 784-128-10": ("mlp", (1, 28, 28)),
    "lenet 3x32x32": ("lenet", (3, 32, 32)),
}
PEERS = (8, 20, 100)
BATCHES = (16, 128)
EXAMPLES = 256  # of each peer, in a pool that all share
POOL = 1024
TURNS = 5
TURN_SECONDS = 0.25
RATE = 0.01


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes
    ----------
    loop, stacked : SGD steps a second, summed over peers; median over turns.
    ratio : median of stacked / loop of the same turn; lowest, highest : its range.
    chunk, threads : models per call and torch's threads, as the engine chose them.
    load : of the machine, over the last minute.
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
    chunk: int
    threads: int
    load: float


def problem(shape: tuple[int, ...], peers: int) -> Problem:
    """Random images and labels."""
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


def engine_steps(data: Problem, model: str, batch: int, device: str) -> Callable[[int], None]:
    """Takes so many steps of every peer with the engine."""
    options = MODEL_OPTIONS[model]() if model in MODEL_OPTIONS else None
    training = Training(batch_size=batch, learning_rate=RATE)
    engine = Engine(data, model, options, range(data.peers), training, device=device)
    x, buffers = engine.initial()
    state = [x]
    rounds = iter(range(10**9))

    def steps(count: int) -> None:
        opt_state = engine.opt_state(state[0])
        drawn = engine.batches(next(rounds), steps=count, epochs=0)
        state[0] = engine.fit(state[0], buffers, opt_state, drawn).x

    return steps


def loop_steps(data: Problem, model: str, batch: int, device: str) -> Callable[[int], None]:
    """Takes so many steps of every peer, one peer after the other."""
    options = MODEL_OPTIONS[model]() if model in MODEL_OPTIONS else None
    pool = torch.tensor(data.inputs, device=device)
    inputs = [pool[torch.tensor(rows)] for rows in data.train.rows]
    targets = [torch.tensor(y, device=device) for y in data.train.targets]
    shape = data.inputs.shape[1:]
    modules = [
        build(model, options, "classification", shape, 10).to(device) for _ in range(data.peers)
    ]
    optimizers = [torch.optim.SGD(module.parameters(), lr=RATE) for module in modules]

    def run(count: int) -> None:
        for x, y, module, optimizer in zip(inputs, targets, modules, optimizers, strict=True):
            for _ in range(count):
                rows = torch.randperm(len(y), device=device)[:batch]
                optimizer.zero_grad()
                F.cross_entropy(module(x[rows]), y[rows]).backward()
                optimizer.step()

    def on(threads: int) -> float:
        torch.set_num_threads(threads)
        run(1)
        return seconds(run, 1, device)

    threads = min({1, torch.get_num_threads()}, key=on)

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        run(count)

    return steps


def seconds(steps: Callable[[int], None], count: int, device: str) -> float:
    """Wall time of `count` steps of every peer."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    steps(count)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(device: str, network: str, peers: int, batch: int) -> Row:
    """One row: both ways in turns."""
    model, shape = NETWORKS[network]
    data = problem(shape, peers)
    ways = [make(data, model, batch, device) for make in (loop_steps, engine_steps)]
    counts = []
    for way in ways:
        seconds(way, 1, device)  # warm-up; the engine chooses its chunk
        counts.append(max(1, round(TURN_SECONDS / seconds(way, 1, device))))
    turns = [
        [
            count * peers / seconds(way, count, device)
            for way, count in zip(ways, counts, strict=True)
        ]
        for _ in range(TURNS)
    ]
    loop, stacked = (round(statistics.median(column), 1) for column in zip(*turns, strict=True))
    ratios = sorted(round(stacked / loop, 2) for loop, stacked in turns)
    chunk, threads = list(chunks.measured.values())[-1]
    middle = statistics.median(ratios)
    load = round(os.getloadavg()[0], 1)
    return Row(
        device,
        network,
        peers,
        batch,
        loop,
        stacked,
        middle,
        ratios[0],
        ratios[-1],
        min(peers, chunk),
        threads,
        load,
    )


def rows() -> Iterator[Row]:
    """All comparisons that this machine can make."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for setting in product(devices, NETWORKS, PEERS, BATCHES):
        yield compare(*setting)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": gpu,
    }


if __name__ == "__main__":
    print(json.dumps(machine()), flush=True)
    for row in rows():
        print(json.dumps(asdict(row)), flush=True)
