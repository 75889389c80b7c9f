"""Options of differential privacy: the [privacy] table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie import ranges
from coterie.ranges import option

MIN_NOISE, MAX_NOISE = 0.01, 1e6
"""Noise for which tests/clients/engine/test_accountant.py checks the accountant's arithmetic. Below
it one gradient costs an epsilon above 25,000, which protects no example."""


@dataclass(frozen=True)
class Privacy:
    """Differentially private training, DP-SGD: per-example clipping and Gaussian noise."""

    kind: Literal["none", "examples"] = option(
        "none", 'Unit of privacy; "examples" makes every gradient on training data private.'
    )
    clip: float = option(
        1.0,
        "Maximum norm of an example's gradient; longer ones are scaled down. From 1e-6, since "
        "float32 would round the noise of a far smaller norm to 0, to 1e6, since sums of far "
        "larger ones would overflow.",
        low=1e-06,
        high=1000000.0,
    )
    noise: float = option(
        1.0,
        "Noise multiplier: standard deviation of the noise on the sum of a minibatch's clipped "
        "gradients, in multiples of `clip`: from 0.01 to 1e6, or 0 in a simulation.",
    )
    delta: float = option(
        1e-5,
        "Delta of the reported (epsilon, delta); choose it well below 1 / (examples per peer).",
        above=0,
        below=1,
    )
    budget: float = option(
        0.0,
        "Maximum epsilon; a peer that has spent it stops training and answering, and only "
        "receives. 0 for no limit.",
        low=0,
    )

    def __post_init__(self) -> None:
        ranges.check(self)
        if self.noise != 0 and not MIN_NOISE <= self.noise <= MAX_NOISE:
            raise ValueError(
                f"noise must lie between {MIN_NOISE} and {MAX_NOISE:g}, or be 0 in a simulation"
            )
        if self.budget and not self.noise:
            raise ValueError("a budget needs noise: without it epsilon is infinite")
