"""FedRep (Collins et al., ICML 2021, algorithm 1): a shared body and a personal head.

Symbols: phi the body and h_i the head of `state.x`; the head is the network's last layer. In a
round a peer trains its head for `head-epochs` with phi frozen, then phi for the run's local
training with h_i frozen, and sends phi only; the peers average the bodies they received. The
personal model is the averaged body with the peer's head, which was trained on the previous average
(the paper's output).

Readings: head and body have separate optimizers, so that neither momentum nor weight decay changes
frozen parameters; batch-norm statistics are personal and updated by both phases. A network of one
layer has no body: nothing is shared and every peer trains alone.

FedPAC: a shared body with features aligned by class, and heads mixed by a quadratic program.

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
from typing import Any, TypeVar

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Floats, GradientFunction, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.methods.fedproto import AlignedState, Prototypes
from coterie.clients.parts.simplex import minimise_on_simplex
from coterie.clients.rule import State
from coterie.clients.training import Terms
from coterie.ranges import option


@dataclass(frozen=True)
class FedRepState(State):
    """State of FedRep; `opt_state` is that of the body."""

    head_opt_state: dict[str, Tensor]  # (P, ...)


T = TypeVar("T", bound=FedRepState)


class FedRep(FedAvg[T], group="personal"):
    """A shared body, and a personal head."""

    offers_model = False

    head_epochs: int = option(
        10, "Passes over the peer's data per round to train the head.", low=1, grid=(1, 3, 10)
    )

    def init(self) -> T:
        return self.separate(self.start())

    def separate(self, start: State, **more: Any) -> T:
        """Return the state before round 1, with separate optimizers of body and head."""
        opt_state = self.engine.opt_state
        start = replace(start, opt_state=opt_state(start.x[:, ~self.head]))
        return self.begin(start, head_opt_state=opt_state(start.x[:, self.head]), **more)

    def offer(self, s: T, t: int) -> tuple[T, Mapping[str, Tensor]]:
        trained = self.train(s, t)
        return trained, {"body": self.pushed(s.x[:, ~self.head], trained.x[:, ~self.head], t)}

    def train(self, s: T, t: int) -> T:
        epochs = self.engine.batches(t, Purpose.EXTRA, epochs=self.head_epochs)
        network, batches = self.engine.network, self.engine.batches(t)
        head = [name for name in network.names if name in network.head]
        body = [name for name in network.names if name not in network.head]
        fit = self.engine.fit(
            s.x, s.buffers, s.head_opt_state, epochs if head else [], terms=Terms(trained=head)
        )
        s = replace(s, x=fit.x, buffers=fit.buffers, head_opt_state=fit.opt_state)
        fit = self.engine.fit(
            s.x, s.buffers, s.opt_state, batches if body else [],
            gradient=self.gradient(s, t), terms=Terms(trained=body),
        )  # fmt: skip
        return s.trained(fit)

    def update(self, s: T, inbox: Inbox) -> T:
        body_pc = inbox.average("body", self.averaging(inbox.round))
        return replace(s, x=filled(s.x, ~self.head, body_pc))


def filled(x_pd: Tensor, mask_d: Tensor, part_pc: Tensor) -> Tensor:
    """Return the models with the parameters of a mask replaced."""
    result = x_pd.clone()
    result[:, mask_d] = part_pc
    return result


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
