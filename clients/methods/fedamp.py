"""FedAMP: attentive message passing, a peer trains towards a mean that favours similar models.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated Learning on Non-IID
Data", AAAI 2021, algorithm 1. Symbols: w_i `state.x`, u_i `state.u`, xi_ij `state.w`, lambda
`options.lambda_`, alpha `options.alpha`, sigma `options.sigma`. In a round each peer

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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.letters import Bools, Letters, Part, Rows
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.methods.fedprox import proximal
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import GradientFunction


@dataclass(frozen=True)
class Options:
    """Options of FedAMP.

    Attributes
    ----------
    alpha : float
        Weight of a model at distance 0; the paper's alpha / sigma. 0 for none: every peer trains
        alone, pulled towards its last model.
    sigma : float or "auto"
        Squared distance at which the weight of a model is alpha / e; "auto": the median of the
        squared distances to the received models.
    lambda_ : float
        Strength of the pull towards the weighted mean; the paper's lambda / alpha.
    """

    alpha: Annotated[float, Range(0)] = 1.0
    sigma: Annotated[float, Range(above=0)] | Literal["auto"] = "auto"
    lambda_: Annotated[float, Range(0)] = 0.1
    grid: ClassVar[Grid] = {"lambda": (0.01, 0.1, 1.0)}


@dataclass(frozen=True)
class FedAMPState(State):
    """State of FedAMP.

    Attributes
    ----------
    u : Tensor, (P, d)
        Weighted means u_i that training is pulled towards; the start before round 1.
    w : ndarray, (P, n)
        Weights xi of these means.
    """

    u: Tensor
    w: Floats


@dataclass(frozen=True)
class _Differences:
    """Differences between the rows of two stacks, (E, d)."""

    a: Rows
    b: Rows

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, at: Part) -> Tensor:
        return self.a[at].sub_(self.b[at])


class FedAMP(LocalTraining[FedAMPState]):
    """FedAMP: local training towards a mean of models, weighted by their distance."""

    def init(self) -> FedAMPState:
        start = self.start()
        return FedAMPState(**vars(start), u=start.x, w=self.eye())

    def gradient(self, state: FedAMPState, round_: int) -> GradientFunction:
        return proximal(self.engine, self.options.lambda_, state.u)

    def update(
        self, state: FedAMPState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedAMPState:
        w_pn = self._attention(offers) * self.freshness(offers)
        w_pn += self.eye() * np.maximum(1 - w_pn.sum(axis=1, keepdims=True), 0.0)
        return replace(state, u=self.engine.mix(w_pn[:, offers.authors], offers["x"]), w=w_pn)

    def weights(self, state: FedAMPState) -> Floats:
        return state.w

    def _attention(self, offers: Letters) -> Floats:
        """Return the weights xi_ij (P, n) of the received models; rows sum to at most 1."""
        heard_pn = offers.senders_to(self.engine.peers, self.engine.n)
        squares_pn = self._squares(offers)
        sigma_p1 = self._sigma(squares_pn, heard_pn)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # most models may be equal
            away_pn = np.where(squares_pn > 0, squares_pn / sigma_p1, 0.0)
        w_pn: Floats = heard_pn * self.options.alpha * np.exp(-away_pn)
        w_pn /= np.maximum(w_pn.sum(axis=1, keepdims=True), 1.0)
        return w_pn

    def _squares(self, offers: Letters) -> Floats:
        """Return |w_i - w_j|^2 (P, n) of the received models; 0 for the others."""
        x_sd, own = offers["x"], np.searchsorted(offers.authors, offers.recipients)
        away_ed = _Differences(Rows(x_sd, offers.rows), Rows(x_sd, own))
        squares_pn = np.zeros((len(self.engine.peers), self.engine.n))
        squares_pn[self.local(offers.recipients), offers.senders] = (
            self.engine.inner(away_ed, away_ed).cpu().numpy()
        )
        return squares_pn

    def _sigma(self, squares_pn: Floats, heard_pn: Bools) -> Floats:
        """Return sigma of each hosted peer, (P,)."""
        if self.options.sigma != "auto":
            return np.full(len(squares_pn), self.options.sigma)
        rows = zip(squares_pn, heard_pn, strict=True)
        return np.array([np.median(row[heard]) if heard.any() else 0.0 for row, heard in rows])
