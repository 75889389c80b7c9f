"""Options of differential privacy: the [privacy] table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Privacy:
    """Differentially private training with per-example clipping and Gaussian noise (DP-SGD).

    Implemented in `clients.engine.privacy`; docs/privacy.md explains the guarantee.

    Attributes
    ----------
    kind : {"none", "examples"}
        Unit of privacy; "examples" makes every gradient on training data private.
    clip : float
        Maximum norm of an example's gradient; longer ones are scaled down. At least 1e-6, since
        float32 would round the noise of a far smaller norm to 0.
    noise : float
        Noise multiplier: standard deviation of the noise on the sum of a minibatch's clipped
        gradients, in multiples of `clip`.
    delta : float
        Delta of the reported (epsilon, delta); choose it well below 1 / (examples per peer).
    budget : float
        Maximum epsilon; a peer that has spent it stops training and answering, and only receives.
        0 for no limit.
    """

    kind: Literal["none", "examples"] = "none"
    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    budget: float = 0.0

    def __post_init__(self) -> None:
        if self.clip < 1e-6:
            raise ValueError("clip must be at least 1e-6: rounding would remove the noise")
        if self.noise < 0 or self.budget < 0:
            raise ValueError("noise and budget must not be negative")
        if not 0 < self.delta < 1:
            raise ValueError("delta must lie between 0 and 1")
        if self.budget and not self.noise:
            raise ValueError("a budget needs noise: without it epsilon is infinite")
