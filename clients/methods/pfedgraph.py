"""pFedGraph: each peer infers whom to average with from how models moved.

Ye, Ni, Wu, Chen, Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML
2023, algorithm 1. Symbols: theta_i `state.x`, theta^0 `state.origin`, W row i `state.w`, p_j the
share of the training samples, alpha `options.alpha`, lambda `options.lambda_`. In a round each peer

1. trains on f_i(x) - lambda <u_i, x> / |x|, u_i = sum_j w_ij x_j / |x_j| from the last round's
   models: x is turned towards its collaborators, which is sum_j w_ij cos(x, x_j) of the paper;
2. receives all models and minimises sum_j w_ij d_ij + alpha |w_i - p|^2 over the probability
   simplex, d_ij = -cos(x_i - theta^0, x_j - theta^0): w_i is the projection of p - d_i / (2 alpha);
3. sets x_i = sum_j w_ij x_j, where the next round starts.

Readings and deviations: the authors' code adds the cosine to the loss, which turns models away from
one another; the paper's d = -cos, kept here, turns them towards. The code's rounding of cosines
above 0.9 up to 1 is left out. The first round has no collaborators yet and trains on f_i alone. A
peer whose model is missing gets no weight and p is that of the senders. Where a problem prescribes
a start for every peer, its movement counts from there. Batch-norm buffers stay personal.

Seen (digits, four label permutations): models that were averaged share the way they went, so
weights can run away to FedAvg's. alpha 0.8 holds for some 10 rounds (accuracy 0.73, 0.34 after 30),
alpha 0.2 finds the clusters and stays (0.89).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import project_onto_simplex
from coterie.clients.rule import Floats, Grid, State

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """pFedGraph's knobs.

    Attributes
    ----------
    alpha : pull of the weights towards the shares of the samples; large is FedAvg, small takes the
        most similar peer alone.
    lambda_ : strength with which training turns a model towards its collaborators.
    """

    alpha: float = 0.8
    lambda_: float = 0.01
    grid: ClassVar[Grid] = {"alpha": (0.2, 0.8, 3.2)}

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ValueError("alpha must be above 0")
        if self.lambda_ < 0:
            raise ValueError("lambda must not be negative")


@dataclass(frozen=True)
class PFedGraphState(State):
    """What a peer keeps beside its model.

    Attributes
    ----------
    towards : (P, d) u_i, 0 before a model came.
    w : (P, n) weights of the last average.
    """

    towards: Tensor
    w: Floats


class PFedGraph(LocalTraining[PFedGraphState]):
    """Models that moved in the same direction are averaged more."""

    def init(self) -> PFedGraphState:
        start = self.start()
        return PFedGraphState(**vars(start), towards=start.x * 0, w=self.eye())

    def gradient(self, state: PFedGraphState, round_: int) -> GradientFunction:
        def turned(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            found = self.engine.gradients(x_pd, buffers, batch)
            turn_pd = self._gradient_of_cosine(state.towards, x_pd)
            return found._replace(values=found.values - self.options.lambda_ * turn_pd)

        return turned

    def update(
        self,
        state: PFedGraphState,
        round_: int,
        offers: Letters,
        sent: Letters,
        answers: Letters,
    ) -> PFedGraphState:
        w_pn = self._weights(offers)
        w_ps, x_sd = w_pn[:, offers.authors], offers["x"]
        lengths_s = np.sqrt(self.engine.inner(x_sd, x_sd).cpu().numpy())
        towards_pd = self.engine.mix(w_ps / np.where(lengths_s > 0, lengths_s, 1.0), x_sd)
        return replace(state, x=self.engine.mix(w_ps, x_sd), towards=towards_pd, w=w_pn)

    def weights(self, state: PFedGraphState) -> Floats:
        return state.w

    def _weights(self, offers: Letters) -> Floats:
        """(P, n) w of each peer, over the senders and itself."""
        present = self.present(offers)
        p_pn = self.shares() * present
        p_pn /= p_pn.sum(axis=1, keepdims=True)
        moved_sd = offers["x"] - self.engine.origins(offers.authors)
        lengths_s = np.sqrt(self.engine.inner(moved_sd, moved_sd).cpu().numpy())
        lengths_s = np.where(lengths_s > 0, lengths_s, np.inf)  # who stayed is similar to nobody
        own = np.searchsorted(offers.authors, self.engine.peers)
        cosine_pn = np.zeros_like(p_pn)
        cosine_pn[:, offers.authors] = self.engine.products(moved_sd[own], moved_sd) / lengths_s
        cosine_pn /= lengths_s[own, None]
        aim_pn = p_pn + cosine_pn / (2 * self.options.alpha)
        # A peer that is more than 1 below the largest gets no weight.
        w_pn = project_onto_simplex(np.where(present, aim_pn, aim_pn.min() - 2))
        return self.discounted(w_pn, offers)

    def _gradient_of_cosine(self, u_pd: Tensor, x_pd: Tensor) -> Tensor:
        """Gradient of <u, x> / |x| with respect to x; 0 at x = 0."""
        squared_p = self.engine.inner(x_pd, x_pd)
        squared_p = squared_p.where(squared_p > 0, float("inf"))
        along_p = self.engine.inner(u_pd, x_pd) / squared_p
        turn_pd = u_pd - along_p.to(x_pd.dtype)[:, None] * x_pd
        return turn_pd / squared_p.sqrt().to(x_pd.dtype)[:, None]
