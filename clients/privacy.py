"""The [privacy] table: differential privacy of single examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIN_NOISE, MAX_NOISE = 0.01, 1e6
"""Noise for which the accountant's arithmetic is checked: tests/clients/engine/test_accountant.py.
Below it one gradient costs an epsilon beyond 25,000, which protects nobody."""


@dataclass(frozen=True)
class Privacy:
    """The [privacy] table: gradients of private examples are clipped, noised and accounted for.

    `clients.engine.privacy` says what is done, docs/privacy.md what the numbers mean.

    Attributes
    ----------
    kind : "examples" protects single training examples; every gradient on them is private then.
    clip : largest norm of one example's gradient; longer ones are scaled down. From 1e-6, as
        float32 would round the noise that belongs to a far smaller one to 0, to 1e6, as sums of far
        larger ones would overflow.
    noise : standard deviation of the noise in multiples of `clip`, on the sum of a minibatch's
        clipped gradients: from 0.01 to 1e6, or 0 in a simulation.
    delta : of the (epsilon, delta) that is reported; well below one over a peer's examples.
    budget : epsilon beyond which a peer neither trains nor answers, but only listens; 0: none.
    """

    kind: Literal["none", "examples"] = "none"
    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    budget: float = 0.0

    def __post_init__(self) -> None:
        if not 1e-6 <= self.clip <= 1e6:
            raise ValueError(
                "clip must be at least 1e-6, or rounding takes the noise away, and at most 1e6"
            )
        if self.noise != 0 and not MIN_NOISE <= self.noise <= MAX_NOISE:
            raise ValueError(
                f"noise must lie between {MIN_NOISE} and {MAX_NOISE:g}, or be 0 in a simulation"
            )
        if not self.budget >= 0:
            raise ValueError("budget must not be negative")
        if not 0 < self.delta < 1:
            raise ValueError("delta must lie between 0 and 1")
        if self.budget and not self.noise:
            raise ValueError("a budget needs noise: without it epsilon is infinite")
