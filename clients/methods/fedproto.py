"""FedProto: peers exchange the mean features of their classes instead of models.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across
Heterogeneous Clients", AAAI 2022, algorithm 1. Here every peer does the server's part for itself.
Symbols: z the m inputs of the last layer of x_i, c_k `state.prototypes`, pi_ik the share of class k
in peer i's training data, lambda `options.lambda_`. In a round each peer

1. trains x_i on the local loss + lambda E |z - c_y|^2 / m (from its second round on), y the class
   of the example;
2. computes the mean features mu_ik of its classes, and sends mu_i and pi_i;
3. sets c_k to the mean of the mu_jk that it received and its own, weighted by n_j pi_jk.

Models stay where they are: x_i is the personal model, and predicts with its own head.

Readings and deviations: the prototypes are those of the trained model in evaluation mode (the
authors' code, yuetan031/FedProto@cb3c41f: means over the last local epoch). They are weighted by
numbers of examples as in the paper; the code has unweighted means. The code also evaluates the
prediction of the class with the nearest prototype. The paper allows a different network for each
peer; here all peers have the same, from the same start. The gradient of the distance is a second
pass over each minibatch. Old letters have a smaller weight. Class shares are clipped to [0, 1]:
letters may hold any numbers. A network of one layer is refused: its features are the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.prototypes import AlignedOptions, AlignedState, Prototypes
from coterie.clients.rule import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import GradientFunction


@dataclass(frozen=True)
class Options(AlignedOptions):
    """Options of FedProto."""


@dataclass(frozen=True)
class FedProtoState(AlignedState):
    """State of FedProto.

    Attributes
    ----------
    w : ndarray, (P, n)
        Weight of each peer's examples in the prototypes of a peer's own examples.
    """

    w: Floats


class FedProto(Prototypes, LocalTraining[FedProtoState]):
    """Local training towards class prototypes that all peers average."""

    offers_model: ClassVar[bool] = False

    def init(self) -> FedProtoState:
        state = self.start()
        aligned = np.zeros(len(state.x), dtype=np.bool_)
        return FedProtoState(**vars(state), prototypes=self.no_prototypes(state),
                             aligned=aligned, w=self.eye())  # fmt: skip

    def gradient(self, state: FedProtoState, round_: int) -> GradientFunction | None:
        return self.aligned_gradient(state.prototypes, state.aligned)

    def offer(
        self, state: FedProtoState, round_: int
    ) -> tuple[FedProtoState, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        features = self.features(state)
        letter = {"prototypes": features.means, "shares": features.shares}
        return state, {name: value.to(state.x.dtype) for name, value in letter.items()}

    def update(
        self, state: FedProtoState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedProtoState:
        w_kpn = self.class_weights(offers)
        own_s = np.searchsorted(offers.authors, self.engine.peers)
        shares_pk = offers["shares"][own_s].clamp(0, 1).double().cpu().numpy()
        return replace(
            state,
            prototypes=self.mean_prototypes(state.prototypes, offers, w_kpn),
            aligned=np.ones_like(state.aligned),
            w=np.einsum("pk,kpn->pn", shares_pk, w_kpn),
        )

    def weights(self, state: FedProtoState) -> Floats:
        return state.w
