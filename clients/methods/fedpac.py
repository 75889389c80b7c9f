"""FedPAC: a shared body with features aligned by class, and heads mixed by a quadratic program.

Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023, algorithm 1. Here every peer does the server's part for itself. Symbols:
phi the body and h_i the head (last layer) of `state.x`, z an input of the head (m numbers), c_k
`state.prototypes`, a_i `state.w`, lambda `options.lambda_`, pi_ik the share of class k in peer i's
training data. In a round each peer

1. computes, with the averaged body of the last round, the mean features mu_ik of its classes and
   V_i = (E |z|^2 - sum_k pi_ik^2 |mu_ik|^2) / n_i;
2. trains its head for `head-epochs` with phi frozen, then phi for the run's local training with h_i
   frozen, on the local loss + lambda E |z - c_y|^2 / m (from its second round on), y the class of
   the example;
3. sends phi, h_i, mu_i, pi_i and V_i, and receives those of others;
4. averages the bodies as FedAvg, sets c_k to the mean of the mu_jk weighted by n_j pi_jk, and h_i
   to sum_j a_ij h_j, where a_i minimises
   sum_j a_j^2 V_j + |sum_j a_j (g_i - g_j)|^2, g_j = (pi_jk mu_jk)_k,
   over the probability simplex; weights below 0.001 are set to 0.

Its personal model is that after step 2, as in the authors' experiments: they measure after local
training, and mix no heads after the last round.

Readings and deviations: the mean features sent are those of step 1, on which V and g are defined
(the authors' code sends a second set, after training, for the c_k). Head and body have separate
optimizers with the run's settings (the code: the head's learning rate is 0.1). The gradient of the
alignment is a second pass over each minibatch. The program is solved exactly, by an active-set
method (the code: CVXPY, after it drops small eigenvalues). Features are computed in evaluation
mode, and batch-norm statistics are personal. A model that is missing has no weight; old ones have a
smaller weight. Class shares are clipped to [0, 1] and V_j at 0: letters may hold any numbers. A
network of one layer is refused: its features are the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from coterie.clients.letters import Letters
from coterie.clients.methods import fedrep
from coterie.clients.methods.fedrep import FedRep, FedRepState, filled
from coterie.clients.parts.prototypes import AlignedOptions, AlignedState, Prototypes
from coterie.clients.parts.simplex import minimise_on_simplex
from coterie.clients.rule import Floats
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import GradientFunction

NEGLIGIBLE = 1e-3
"""Weights of heads below this are set to 0."""


@dataclass(frozen=True)
class Options(AlignedOptions, fedrep.Options):
    """Options of FedPAC."""

    head_epochs: Annotated[int, Range(1)] = 1


@dataclass(frozen=True)
class FedPACState(AlignedState, FedRepState):
    """State of FedPAC.

    Attributes
    ----------
    w : ndarray, (P, n)
        Weights of the heads.
    fitted : Tensor, (P, d)
        Models after the last local training.
    """

    w: Floats
    fitted: Tensor


class FedPAC(Prototypes, FedRep[FedPACState]):
    """FedRep with features aligned by class, and heads mixed among similar peers."""

    def init(self) -> FedPACState:
        state = self.separate()
        return FedPACState(
            **vars(state),
            prototypes=self.no_prototypes(state),
            aligned=np.zeros(len(state.x), dtype=np.bool_),
            w=self.eye(),
            fitted=state.x,
        )

    def offer(self, state: FedPACState, round_: int) -> tuple[FedPACState, Mapping[str, Tensor]]:
        features = self.features(state)
        explained_p = (features.shares[..., None] * features.means).square().sum(dim=(1, 2))
        n_p = np.maximum(self.engine.data.shards["train"].lengths_p, 1)
        variance_p = (features.squares - explained_p) / self.engine.tensor(n_p).double()
        statistics = {
            "shares": features.shares,
            "prototypes": features.means,
            "variance": variance_p[:, None],
        }
        state, body = super().offer(state, round_)
        offers = {name: value.to(state.x.dtype) for name, value in statistics.items()}
        return replace(state, fitted=state.x), {**body, "head": state.x[:, self.head], **offers}

    def body_gradient(self, state: FedPACState) -> GradientFunction:
        aligned = self.aligned_gradient(state.prototypes, state.aligned)
        return aligned or self.engine.gradients

    def update(
        self, state: FedPACState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedPACState:
        state = super().update(state, round_, offers, sent, answers)
        w_pn = self.discounted(self._head_weights(offers), offers)
        head_ph = self.engine.mix(w_pn[:, offers.authors], offers["head"])
        w_kpn = self.class_weights(offers)
        return replace(
            state,
            x=filled(state.x, self.head, head_ph),
            prototypes=self.mean_prototypes(state.prototypes, offers, w_kpn),
            aligned=np.ones_like(state.aligned),
            w=w_pn,
        )

    def personal(self, state: FedPACState) -> FedPACState:
        return replace(state, x=state.fitted)

    def weights(self, state: FedPACState) -> Floats:
        return state.w

    def _head_weights(self, offers: Letters) -> Floats:
        """Return the weights a (P, n) of the heads that each peer has."""
        shares = offers["shares"].clamp(0, 1)[..., None]
        g_sd = (shares * offers["prototypes"]).flatten(1)
        inner_ss = self.engine.products(g_sd, g_sd)
        variance_s = offers["variance"][:, 0].clamp_min(0).double().cpu().numpy()
        own_p = np.searchsorted(offers.authors, self.engine.peers)
        w_pn = np.zeros((len(own_p), self.engine.n))
        for p, at in enumerate(map(np.flatnonzero, self.present(offers)[:, offers.authors])):
            to_own_s = inner_ss[at, own_p[p]]
            apart = inner_ss[np.ix_(at, at)] - to_own_s[:, None] - to_own_s
            apart += inner_ss[own_p[p], own_p[p]]
            a_s = minimise_on_simplex(np.diag(variance_s[at]) + apart)
            a_s = np.where(a_s < NEGLIGIBLE, 0.0, a_s)
            w_pn[p, offers.authors[at]] = a_s / a_s.sum()
        return w_pn
