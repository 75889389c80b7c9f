"""FedPAC: a shared body with features aligned by class, and heads mixed by a quadratic program.

Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023, algorithm 1. Here every peer does the server's part for itself. Symbols:
phi the body and h_i the head (last layer) of `state.x`, z an input of the head (m numbers), c_k
`state.prototypes`, a_i `state.w`, lambda `lambda_`, pi_ik the share of class k in peer i's
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

import numpy as np

from coterie.clients.hints import Floats, GradientFunction, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedproto import AlignedState, Prototypes
from coterie.clients.methods.fedrep import FedRep, FedRepState, filled
from coterie.clients.parts.simplex import minimise_on_simplex
from coterie.ranges import option

NEGLIGIBLE = 1e-3
"""Weights of heads below this are set to 0."""


@dataclass(frozen=True)
class FedPACState(AlignedState, FedRepState):
    """State of FedPAC; `w` has the weights of the heads."""

    fitted: Tensor  # models after the last local training, (P, d)


class FedPAC(Prototypes[FedPACState], FedRep[FedPACState], group="personal", learns_graph=True):
    """A shared body with aligned features, and heads mixed among similar peers."""

    head_epochs: int = option(1, "Passes over the peer's data per round to train the head.", low=1)

    def init(self) -> FedPACState:
        start = self.start()
        return self.separate(start, **self.unaligned(start), fitted=start.x)

    def offer(self, s: FedPACState, t: int) -> tuple[FedPACState, Mapping[str, Tensor]]:
        features = self.features(s)
        explained_p = (features.shares[..., None] * features.means).square().sum(dim=(1, 2))
        n_p = np.maximum(self.engine.data.shards["train"].lengths_p, 1)
        variance_p = (features.squares - explained_p) / self.engine.tensor(n_p).double()
        statistics = {
            "shares": features.shares,
            "prototypes": features.means,
            "variance": variance_p[:, None],
        }
        s, body = FedRep.offer(self, s, t)
        offers = {name: value.to(s.x.dtype) for name, value in statistics.items()}
        return replace(s, fitted=s.x), {**body, "head": s.x[:, self.head], **offers}

    def gradient(self, s: FedPACState, t: int) -> GradientFunction | None:
        return self.aligned_gradient(s)

    def update(self, s: FedPACState, inbox: Inbox) -> FedPACState:
        s = FedRep.update(self, s, inbox)
        w_pn = inbox.discounted(self._head_weights(inbox))
        x_pd = filled(s.x, self.head, inbox.mix("head", w_pn))
        return replace(self.realigned(s, inbox, self.class_weights(inbox)), x=x_pd, w=w_pn)

    def personal(self, s: FedPACState) -> FedPACState:
        return replace(s, x=s.fitted)

    def _head_weights(self, inbox: Inbox) -> Floats:
        """Return the weights a (P, n) of the heads that each peer has."""
        shares = inbox["shares"].clamp(0, 1)[..., None]
        g_sd = (shares * inbox["prototypes"]).flatten(1)
        inner_ss = self.engine.products(g_sd, g_sd)
        variance_s = inbox["variance"][:, 0].clamp_min(0).double().cpu().numpy()
        w_pn = np.zeros_like(self.eye())
        for p, at in enumerate(map(np.flatnonzero, inbox.present[:, inbox.authors])):
            own = inbox.own[p]
            to_own_s = inner_ss[at, own]
            apart = inner_ss[np.ix_(at, at)] - to_own_s[:, None] - to_own_s
            apart += inner_ss[own, own]
            a_s = minimise_on_simplex(np.diag(variance_s[at]) + apart)
            a_s = np.where(a_s < NEGLIGIBLE, 0.0, a_s)
            w_pn[p, inbox.authors[at]] = a_s / a_s.sum()
        return w_pn
