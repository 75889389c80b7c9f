"""FedProto: peers exchange the mean features of their classes instead of models.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across
Heterogeneous Clients", AAAI 2022, algorithm 1. Here every peer does the server's part for itself.
Symbols: z the m inputs of the last layer of x_i, c_k `state.prototypes`, pi_ik the share of class k
in peer i's training data, lambda `lambda_`. In a round each peer

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
from dataclasses import replace

import numpy as np

from coterie.clients.hints import GradientFunction, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.prototypes import AlignedState, Prototypes


class FedProto(Prototypes[AlignedState], LocalTraining[AlignedState], group="personal"):
    """Personal models, whose features of a class are pulled towards the mean over all.

    `w` has the weight of each peer's examples in the prototypes of a peer's own examples.
    """

    offers_model = False

    def init(self) -> AlignedState:
        start = self.start()
        return self.begin(start, **self.unaligned(start))

    def gradient(self, s: AlignedState, t: int) -> GradientFunction | None:
        return self.aligned_gradient(s)

    def offer(self, s: AlignedState, t: int) -> tuple[AlignedState, Mapping[str, Tensor]]:
        s = self.train(s, t)
        features = self.features(s)
        letter = {"prototypes": features.means, "shares": features.shares}
        return s, {name: value.to(s.x.dtype) for name, value in letter.items()}

    def update(self, s: AlignedState, inbox: Inbox) -> AlignedState:
        w_kpn = self.class_weights(inbox)
        shares_pk = inbox["shares"][inbox.own].clamp(0, 1).double().cpu().numpy()
        return replace(self.realigned(s, inbox, w_kpn), w=np.einsum("pk,kpn->pn", shares_pk, w_kpn))
