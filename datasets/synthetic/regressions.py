"""Least squares around a few centres (papers: all-for-one, appendix A).

Peer i, of cluster k = i mod `clusters`, observes y = <x, theta_k> exactly, with x ~ N(0, I) and
theta_k ~ U(-10, 10)^d. Its squared loss (<x, theta> - y)^2 has curvature beta = 2, and its gradient
noise is multiplicative: it vanishes at theta_k, so SGD converges linearly.

Deviation: the paper draws new observations in every step; here a peer has `samples` of them, whose
optimum is theta_k too. The peers of a cluster share one test set.

Regression on successive intervals of a sine curve (papers: federico, figure 1).

Peer i has noisy points of sin(x) on the i-th of n equal intervals of [0, 2 pi `periods`): the best
lines of distant intervals differ, those of neighbours are similar.

The paper states no numbers; the defaults are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.datasets.problem import Floats, Problem, Split
from coterie.ranges import option

_TESTS = 1000
_CENTRE, _TRAIN, _TEST = range(3)  # purposes of streams


@dataclass(frozen=True)
class LeastSquaresOptions:
    """Options of the least-squares problem."""

    dimension: int = option(2, "Number of features d.", low=1)
    clusters: int = option(2, "Number of centres theta_k.", low=1)
    samples: int = option(1000, "Observations per peer.", low=1)

    def check_peers(self, peers: int) -> None:
        if self.clusters > peers:
            raise ValueError(f"clusters = {self.clusters} must be at most peers = {peers}")

    def numbers(self, peers: int) -> int:
        return (peers * self.samples + self.clusters * _TESTS) * (self.dimension + 1)


def load_least_squares(peers: int, seed: int, options: LeastSquaresOptions) -> Problem:
    """Make the problem of `options`."""
    # Centres and a peer's observations depend on the seed, not on the number of peers.
    d, clusters = options.dimension, options.clusters
    cluster = np.arange(peers) % clusters
    centre_kd = np.random.default_rng([seed, _CENTRE]).uniform(-10, 10, (clusters, d))
    sizes = [options.samples] * peers + [_TESTS] * clusters
    keys = [(_TRAIN, i) for i in range(peers)] + [(_TEST, k) for k in range(clusters)]
    inputs = [
        np.random.default_rng([seed, *key]).standard_normal((size, d))
        for key, size in zip(keys, sizes, strict=True)
    ]
    owners = [*cluster, *range(clusters)]
    targets = [x @ centre_kd[k][:, None] for x, k in zip(inputs, owners, strict=True)]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    tests = [peers + k for k in cluster]
    none = np.empty(0, dtype=np.int64)
    return Problem(
        name="least-squares",
        task="regression",
        inputs=np.concatenate(inputs),
        train=Split(tuple(rows[:peers]), tuple(targets[:peers])),
        validation=Split((none,) * peers, (np.empty((0, 1)),) * peers),
        test=Split(tuple(rows[k] for k in tests), tuple(targets[k] for k in tests)),
        outputs=1,
        mean=np.zeros(1),
        std=np.ones(1),
        samples=np.full(peers, options.samples),
        clusters=cluster,
    )


_TEST_POINTS = 200


@dataclass(frozen=True)
class SineOptions:
    """Options of the sine problem."""

    samples: int = option(20, "Training points per peer.", low=1)
    noise: float = option(0.1, "Standard deviation of the points around the curve.", low=0)
    periods: float = option(
        1.0, "Number of periods of the curve, divided among the peers.", above=0
    )

    def numbers(self, peers: int) -> int:
        return 2 * peers * (self.samples + _TEST_POINTS)


def load_sine(peers: int, seed: int, options: SineOptions) -> Problem:
    """Make the problem of `options`."""
    # Test points have the same noise as training points.
    size = options.samples + _TEST_POINTS
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
