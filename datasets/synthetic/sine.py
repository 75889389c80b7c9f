"""Regression on successive intervals of a sine curve (papers: federico, figure 1).

Peer i has noisy points of sin(x) on the i-th of n equal intervals of [0, 2 pi `periods`): the best
lines of distant intervals differ, those of neighbours are similar.

The paper states no numbers; the defaults are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.datasets.problem import Floats, Problem, Split
from coterie.ranges import option

_TESTS = 200


@dataclass(frozen=True)
class SineOptions:
    """Options of the sine problem."""

    samples: int = option(20, "Training points per peer.", low=1)
    noise: float = option(0.1, "Standard deviation of the points around the curve.", low=0)
    periods: float = option(
        1.0, "Number of periods of the curve, divided among the peers.", above=0
    )

    def numbers(self, peers: int) -> int:
        """Numbers in the data of all peers."""
        return 2 * peers * (self.samples + _TESTS)


def load_sine(peers: int, seed: int, options: SineOptions) -> Problem:
    """Make the problem of `options`."""
    # Test points have the same noise as training points.
    size = options.samples + _TESTS
    width = 2 * np.pi * options.periods / peers
    x: Floats = np.empty((peers, size, 1))
    y: Floats = np.empty((peers, size, 1))
    for i in range(peers):
        rng = np.random.default_rng([seed, i])
        x[i] = width * (i + rng.random((size, 1)))
        y[i] = np.sin(x[i]) + options.noise * rng.standard_normal((size, 1))
    rows = np.arange(peers * size).reshape(peers, size)
    train = x[:, : options.samples]

    def part(first: int, last: int) -> Split:
        return Split(tuple(rows[:, first:last]), tuple(y[:, first:last]))

    return Problem(
        name="sine",
        task="regression",
        inputs=x.reshape(-1, 1),
        train=part(0, options.samples),
        validation=part(0, 0),
        test=part(options.samples, size),
        outputs=1,
        mean=train.mean(axis=(0, 1)),
        std=train.std(axis=(0, 1)),
        samples=np.full(peers, options.samples),
    )
