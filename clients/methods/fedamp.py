"""FedAMP: attentive message passing, a peer trains towards a mean that favours similar models.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated Learning on Non-IID
Data", AAAI 2021, algorithm 1. Symbols: w_i `state.x`, u_i `state.u`, xi_ij `state.w`, lambda
`lambda_`, alpha `alpha`, sigma `sigma`. In a round each peer

1. trains on f_i(x) + lambda / (2 alpha) |x - u_i|^2, starting at w_i, and sends w_i;
2. receives the models w_j and sets u_i = sum_j xi_ij w_j with
   xi_ij = alpha A'(|w_i - w_j|^2) for j != i, xi_ii = 1 - sum_j xi_ij,
   A(z) = 1 - exp(-z / sigma), A'(z) = exp(-z / sigma) / sigma.

Readings and deviations: the option `alpha` is the paper's alpha / sigma, the weight of a model at
distance 0, and `lambda` the paper's lambda / alpha, the strength of the pull: neither has the unit
of a squared distance. sigma = "auto" is the median of the squared distances to the models
that a peer received in the round: with the paper's fixed sigma the weights vanish or are all equal
as soon as it is not of the order of these distances. Where sum_j xi_ij exceeds 1, the step would
overshoot; the weights are divided by the sum, and xi_ii is 0. The first round has no u_i yet and
trains towards the start. Training starts at w_i, as in PFLlib (the proximal problem of the paper is
solved; a few steps from u_i would be another method). PFLlib's penalty is the norm |x - u_i|, a
pull of constant length; the paper's is squared, as here. A model that is missing has no weight, an
old one a smaller weight; xi_ii takes the rest. HeurFedAMP, the paper's heuristic with cosines and a
fixed xi_ii, is left out. Batch-norm buffers stay personal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.clients.hints import Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import State
from coterie.ranges import option


@dataclass(frozen=True)
class FedAMPState(State):
    """State of FedAMP."""

    u: Tensor  # weighted means u_i that training is pulled towards, (P, d); first the start
    w: Floats  # weights xi of these means, (P, n)


class FedAMP(LocalTraining[FedAMPState], group="unknown", learns_graph=True):
    """Trains towards a mean of the models that are near its own."""

    alpha: float = option(
        1.0,
        "Weight of a model at distance 0; the paper's alpha / sigma. 0 for none: every peer trains "
        "alone, pulled towards its last model.",
        low=0,
    )
    sigma: float | Literal["auto"] = option(
        "auto",
        'Squared distance at which the weight of a model is alpha / e; "auto": the median of the '
        "squared distances to the received models.",
        above=0,
    )
    lambda_: float = option(
        0.1, "Strength of the pull towards the weighted mean; the paper's lambda / alpha.",
        low=0, grid=(0.01, 0.1, 1.0),
    )  # fmt: skip

    def init(self) -> FedAMPState:
        start = self.start()
        return self.begin(start, u=start.x)

    def train(self, s: FedAMPState, t: int) -> FedAMPState:
        return self.fit(s, t, proximal=(self.lambda_, s.u))

    def update(self, s: FedAMPState, inbox: Inbox) -> FedAMPState:
        z = inbox.squared_distances("x")  # |w_i - w_j|^2
        with np.errstate(divide="ignore", invalid="ignore"):  # most models may be equal
            w = inbox.heard * self.alpha * np.exp(-np.where(z > 0, z / self.scale(z, inbox), 0.0))
        w /= np.maximum(w.sum(axis=1, keepdims=True), 1.0)
        w = w * inbox.discount
        w += self.eye() * np.maximum(1 - w.sum(axis=1, keepdims=True), 0.0)
        return replace(s, u=inbox.mix("x", w), w=w)

    def scale(self, z: Floats, inbox: Inbox) -> Floats | float:
        """Return sigma, of each hosted peer (P, 1) or of all."""
        if self.sigma != "auto":
            return self.sigma
        rows = zip(z, inbox.heard, strict=True)
        return np.array([[np.median(row[heard]) if heard.any() else 0.0] for row, heard in rows])
