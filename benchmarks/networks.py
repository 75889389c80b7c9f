"""Networks of libraries: training steps per second, engine against a plain PyTorch loop.

`OMP_NUM_THREADS=1 python -m benchmarks.networks [NAME ...]`: four peers train on 3x32x32 images in
minibatches of 16; both sides take the same SGD steps in this process, in turns, and seconds are the
processor's, because others may work on the machine. A step is one minibatch of one peer. "one at a
time" marks a network that cannot be batched (`coterie.clients.engine.probe`). Those of transformers
are small, and are written to a folder first.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from coterie.clients.engine.engine import Engine
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split

PEERS, BATCH, SHAPE, CLASSES = 4, 16, (3, 32, 32), 10
STEPS, SECONDS = 3, 1.0
TURNS = 3
NAMES = (
    "torchvision:squeezenet1_1", "torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5",
    "torchvision:resnet18", "torchvision:mnasnet0_5", "torchvision:efficientnet_b0",
    "timm:test_resnet", "timm:test_vit", "timm:test_convnext", "timm:convnext_atto",
    "timm:mobilenetv3_small_050", "timm:resnet10t", "timm:vit_tiny_patch16_224",
    "transformers:ViT", "transformers:ResNet", "transformers:ConvNext",
)  # fmt: skip
FOLDERS: dict[str, dict[str, object]] = {
    "ViT": {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 256, "image_size": 32, "patch_size": 4,
    },
    "ResNet": {
        "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
        "layer_type": "basic",
    },
    "ConvNext": {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1], "image_size": 32},
}  # fmt: skip
"""Architecture of transformers -> its configuration."""


def images() -> Problem:
    """Draw random images with random classes, 64 per peer."""
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


def folder_of(name: str, parent: Path) -> str:
    """Return the network's name here; write an untrained transformers network to a folder."""
    library, _, which = name.partition(":")
    if library != "transformers" or which not in FOLDERS:
        return name
    import transformers

    config = getattr(transformers, f"{which}Config")(num_labels=CLASSES, **FOLDERS[which])
    build = transformers.AutoModelForImageClassification.from_config
    network = build(config)  # type: ignore[no-untyped-call]
    network.save_pretrained(parent / which)
    return f"{library}:{parent / which}"


def rates(*runs: Callable[[int], object]) -> list[float]:
    """Return steps per second of all peers: medians over turns, after a warm-up turn."""
    result: list[list[float]] = [[] for _ in runs]
    for turn in range(1 + TURNS):
        for run, of_run in zip(runs, result, strict=True):
            began, calls = time.process_time(), 0
            while not calls or (turn and time.process_time() - began < SECONDS):
                run(calls)
                calls += 1
            of_run.append(calls * STEPS * PEERS / (time.process_time() - began))
    return [float(np.median(of_run[1:])) for of_run in result]


def measured(name: str, problem: Problem) -> tuple[int, str, float, float]:
    """Return parameters, the reason for no batching, and the rates of engine and loop."""
    training = Training(batch_size=BATCH, local_steps=STEPS, learning_rate=0.01)
    engine = Engine(problem, name, None, range(PEERS), training, device="cpu")
    x_pd, buffers = engine.initial()
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

    def stacked(t: int) -> None:
        engine.fit(x_pd, buffers, {}, engine.batches(t + 1))

    of_engine, of_loop = rates(stacked, loop)
    return engine.d, engine.network.alone, of_engine, of_loop


def main(names: list[str]) -> None:
    """Print the table."""
    problem, console = images(), Console(width=110)
    table = Table("network", "parameters", "batched", "engine, steps/s", "plain loop", "ratio")
    with tempfile.TemporaryDirectory() as folders:
        for name in names:
            try:
                here = folder_of(name, Path(folders))
                d, alone, engine, loop = measured(here, problem)
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
