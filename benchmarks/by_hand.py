"""How far the engine is from a stacked step written by hand: `python -m benchmarks.by_hand`.

The MLP 784-100-10 of 20 peers, batches of 10, plain SGD: what its formulas need and nothing else,
in tensors of its own, on one thread or all, whatever is faster. In turns; above 1 the engine is
faster.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial

import torch

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
from datasets.problem import Problem

NETWORK, PEERS, BATCH = "mlp-784", 20, 10


def by_hand(data: Problem, batch: int, hidden: int = 100) -> Callable[[int], None]:
    """Takes so many steps of every peer."""
    pool = torch.tensor(data.inputs).flatten(1)
    rows_en, targets_en = (
        torch.tensor([each.tolist() for each in of]) for of in (data.train.rows, data.train.targets)
    )
    (models, examples), inputs = rows_en.shape, pool.shape[1]
    first, second = torch.randn(models, hidden, inputs) / 28, torch.randn(models, 10, hidden) / 10
    first_bias, second_bias = torch.zeros(models, 1, hidden), torch.zeros(models, 1, 10)
    at = torch.arange(models)[:, None]

    def steps(count: int) -> None:
        for _ in range(count):
            drawn = torch.rand(models, examples).argsort(dim=1)[:, :batch]
            x, y = pool[rows_en[at, drawn]], targets_en[at, drawn, None]
            h = torch.baddbmm(first_bias, x, first.mT).relu_()
            g = torch.baddbmm(second_bias, h, second.mT).softmax(dim=2)
            g.scatter_add_(2, y, torch.full_like(y, -1, dtype=g.dtype)).mul_(RATE / batch)
            below = torch.bmm(g, second).mul_(h > 0)
            second.sub_(torch.bmm(g.mT, h))
            second_bias.sub_(g.sum(dim=1, keepdim=True))
            first.sub_(torch.bmm(below.mT, x))
            first_bias.sub_(below.sum(dim=1, keepdim=True))

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
