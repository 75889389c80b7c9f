"""Engine against a hand-written stacked step: `python -m benchmarks.by_hand`.

The MLP 784-100-10 of 20 peers, batches of 10, plain SGD. The hand-written step computes only its
formulas, on separate tensors, on one thread or all (the faster one counts). Both alternate; a ratio
above 1 means that the engine is faster.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.engine import (
    NETWORKS,
    RATE,
    THREADS,
    TURN_SECONDS,
    TURNS,
    engine_steps,
    machine,
    problem,
    seconds,
)
from coterie.datasets.problem import Problem

NETWORK, PEERS, BATCH = "mlp-784", 20, 10


class Mlp(NamedTuple):
    """Weights (e, o, i) and biases (e, 1, o) of two layers."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    def step(self, x: Tensor, y: Tensor, rate: float) -> None:
        """Step down the mean cross-entropy of inputs (e, b, i) with classes (e, b)."""
        h = torch.baddbmm(self.first_bias, x, self.first.mT).relu_()
        g = torch.baddbmm(self.second_bias, h, self.second.mT).softmax(dim=2)
        g.scatter_add_(2, y[..., None], torch.full_like(g[..., :1], -1)).mul_(rate / y.shape[1])
        below = torch.bmm(g, self.second).mul_(h > 0)
        self.second.sub_(torch.bmm(g.mT, h))
        self.second_bias.sub_(g.sum(dim=1, keepdim=True))
        self.first.sub_(torch.bmm(below.mT, x))
        self.first_bias.sub_(below.sum(dim=1, keepdim=True))


def drawn(models: int, inputs: int, hidden: int, outputs: int) -> Mlp:
    """Draw random models."""
    first, second = torch.randn(models, hidden, inputs), torch.randn(models, outputs, hidden)
    biases = torch.zeros(models, 1, hidden), torch.zeros(models, 1, outputs)
    return Mlp(first / inputs**0.5, biases[0], second / hidden**0.5, biases[1])


def by_hand(data: Problem, batch: int) -> Callable[[int], None]:
    """Return a function that takes a number of steps of every peer."""
    pool = torch.tensor(data.inputs).flatten(1)
    rows_en, targets_en = (
        torch.tensor([each.tolist() for each in of]) for of in (data.train.rows, data.train.targets)
    )
    models, examples = rows_en.shape
    mlp, at = drawn(models, pool.shape[1], 100, 10), torch.arange(models)[:, None]

    def steps(count: int) -> None:
        for _ in range(count):
            places = torch.rand(models, examples).argsort(dim=1)[:, :batch]
            mlp.step(pool[rows_en[at, places]], targets_en[at, places], RATE)

    return steps


def main() -> None:
    """Measure and print."""
    model, shape, options, _ = NETWORKS[NETWORK]
    data = problem(shape, PEERS)
    hand = by_hand(data, BATCH)

    def on(threads: int, count: int) -> None:
        torch.set_num_threads(threads)
        hand(count)

    ways: list[Callable[[int], None]]
    ways = [partial(on, 1), partial(on, THREADS), engine_steps(data, model, options, BATCH, "cpu")]
    for way in ways:
        way(5)
    counts = [round(TURN_SECONDS / seconds(way, 5, "cpu") * 5) for way in ways]
    turns = [
        [seconds(way, count, "cpu") / count for way, count in zip(ways, counts, strict=True)]
        for _ in range(TURNS)
    ]
    ratios = [min(one, all_) / engine for one, all_, engine in turns]
    print(json.dumps({**machine(), "ratio": round(statistics.median(ratios), 2)}))


if __name__ == "__main__":
    main()
