"""Networks of libraries: training steps a second in the engine, against a plain PyTorch loop.

`python -m benchmarks.networks [NAME ...]`: four peers train on 3x32x32 images in minibatches of 16;
both sides take the same SGD steps in this process. A step is one minibatch of one peer. "one at a
time" marks a network that cannot be batched (`clients.engine.probe`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from clients.engine.engine import Engine
from clients.training import Training
from datasets.problem import Problem, Split

PEERS, BATCH, SHAPE, CLASSES = 4, 16, (3, 32, 32), 10
STEPS, SECONDS = 3, 3.0
NAMES = (
    "torchvision:squeezenet1_1", "torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5",
    "torchvision:resnet18", "torchvision:mnasnet0_5", "torchvision:efficientnet_b0",
    "timm:test_resnet", "timm:test_vit", "timm:test_convnext", "timm:convnext_atto",
    "timm:mobilenetv3_small_050", "timm:resnet10t", "timm:vit_tiny_patch16_224",
)  # fmt: skip


def images() -> Problem:
    """Random images with random classes, 64 for each peer."""
    g = np.random.default_rng(0)
    rows = np.arange(PEERS * 64)
    part = Split(
        tuple(np.split(rows, PEERS)),
        tuple(g.integers(CLASSES, size=64) for _ in range(PEERS)),
    )
    none = Split((rows[:0],) * PEERS, (rows[:0],) * PEERS)
    inputs = g.normal(size=(len(rows), *SHAPE))
    ones = np.ones((3, 1, 1))
    return Problem(
        "images", "classification", inputs, part, none, part, CLASSES, 0 * ones, ones,
        np.full(PEERS, 64),
    )  # fmt: skip


def rate(run: Callable[[int], object]) -> float:
    """Steps a second of all peers together, after a first call that warms up."""
    run(0)
    began, calls = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        calls += 1
        run(calls)
    return calls * STEPS * PEERS / (time.monotonic() - began)


def measured(name: str, problem: Problem) -> tuple[int, str, float, float]:
    """Parameters, why it runs alone, and the rates of the engine and of a plain loop."""
    training = Training(batch_size=BATCH, local_steps=STEPS, learning_rate=0.01)
    engine = Engine(problem, name, None, range(PEERS), training, device="cpu")
    x_pd, buffers = engine.initial()
    stacked = rate(lambda t: engine.fit(x_pd, buffers, {}, engine.batches(t + 1)))
    modules = [engine._fresh(0).train() for _ in range(PEERS)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in modules]
    data = torch.randn(PEERS, STEPS, BATCH, *SHAPE)
    labels = torch.randint(CLASSES, (PEERS, STEPS, BATCH))

    def loop(_: int) -> None:
        for peer, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            for step in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(module(data[peer, step]), labels[peer, step]).backward()
                optimizer.step()

    return engine.d, engine.network.alone, stacked, rate(loop)


def main(names: list[str]) -> None:
    """Print the table."""
    problem, console = images(), Console(width=110)
    table = Table("network", "parameters", "batched", "engine, steps/s", "plain loop", "ratio")
    for name in names:
        try:
            d, alone, engine, loop = measured(name, problem)
        except ValueError as error:
            table.add_row(name, "", str(error)[:60])
            continue
        table.add_row(
            name, f"{d:,}", "one at a time" if alone else "yes", f"{engine:.1f}", f"{loop:.1f}",
            f"{engine / loop:.2f}",
        )  # fmt: skip
        print(name, d, alone, round(engine, 1), round(loop, 1), flush=True, file=sys.stderr)
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
