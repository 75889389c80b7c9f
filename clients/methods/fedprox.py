"""FedProx (Li et al., MLSys 2020, algorithm 2): FedAvg with a proximal term in local training.

Symbols: w `state.x` within a round, w^t the averaged model at the start of the round, mu
`mu`. Each local step descends h(w) = f_i(w) + mu/2 |w - w^t|^2 (equation 2); then the
peers average as in FedAvg.

Readings: the penalty is part of the objective, so momentum and Adam include it; every peer does the
same amount of local work, `local-steps` (no stragglers).
"""

from __future__ import annotations

from typing import TypeVar

from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import State
from coterie.ranges import option

S = TypeVar("S", bound=State)


class FedProx(FedAvg[S], group="alike"):
    """FedAvg with a proximal term in local training."""

    mu: float = option(
        0.1, "Strength of the pull towards the model at the start of the round.",
        low=0, grid=(0.01, 0.1, 1.0),
    )  # fmt: skip

    def train(self, s: S, t: int) -> S:
        return self.fit(s, t, proximal=(self.mu, s.x))
