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

Class prototypes: mean features of the classes, their means over peers, and the pull to them.

Legend: z are the m inputs of a network's last layer (features), k = classes, p = peers of this
node, n = all peers or their examples, s = rows of letters, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from coterie.clients.hints import (
    Batch,
    Bools,
    Buffers,
    Engine,
    Floats,
    GradientFunction,
    Gradients,
    Tensor,
)
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Rule, State, Weighted
from coterie.datasets.problem import Problem
from coterie.ranges import option

_ONE_LAYER = (
    "a network of one layer has no features but its inputs, and letters would hold their means: "
    'set model = "mlp", or another network with a hidden layer'
)


class Features(NamedTuple):
    """Statistics of the features of training examples, in float64."""

    shares: Tensor  # share of each class, (P, K)
    means: Tensor  # mean features of each class, (P, K, m); 0 for a class without examples
    squares: Tensor  # mean of |z|^2, (P,)


@dataclass(frozen=True)
class AlignedState(Weighted):
    """State of methods that align features by class."""

    prototypes: Tensor  # mean features of the classes over all peers, (P, K, m); 0 if nobody's
    aligned: Bools  # peers that have received or computed prototypes, (P,)


A = TypeVar("A", bound=AlignedState)


class Prototypes(Rule[A], exposes="its letters hold mean features of private examples"):
    """Averages of class prototypes over peers, for the rules of methods."""

    lambda_: float = option(
        1.0,
        "Strength with which the features of a class are pulled towards their mean over all peers; "
        "0 for none.",
        low=0, grid=(0.1, 1.0, 10.0),
    )  # fmt: skip

    def check(self, config: Any) -> None:
        if config.network == "linear":
            raise ValueError(_ONE_LAYER)

    def check_data(self, problem: Problem) -> None:
        if problem.task != "classification":
            raise ValueError(
                f"needs one class per example, but {problem.name} is a {problem.task} problem: "
                "choose a data set with classes, or another method"
            )

    def bind(self, engine: Engine, rounds: int) -> Self:
        below = engine.network.below_head(engine.network.module)
        if next(below.module.parameters(), None) is None:
            raise ValueError(_ONE_LAYER)
        return super().bind(engine, rounds)

    def unaligned(self, start: State) -> dict[str, Any]:
        """Return the fields of the state before any prototypes are known."""
        width = self.engine.embeddings(start.x, start.buffers, "train").shape[2]
        prototypes = start.x.new_zeros(len(start.x), self.engine.outputs, width)
        return {"prototypes": prototypes, "aligned": np.zeros(len(start.x), dtype=np.bool_)}

    def features(self, s: State) -> Features:
        """Compute the statistics of the peers' training examples."""
        engine = self.engine
        shard, certain = engine.data.shards["train"], engine.task.certain
        assert certain is not None
        z_pnm = engine.embeddings(s.x, s.buffers, "train").double()
        valid_pn = engine.tensor(np.arange(z_pnm.shape[1]) < shard.lengths_p[:, None]).double()
        classes_pnk = certain(shard.targets_pn[:, : z_pnm.shape[1]], engine.outputs)
        classes_pnk = classes_pnk.double() * valid_pn[..., None]
        counts_pk, n_p = classes_pnk.sum(dim=1), valid_pn.sum(dim=1).clamp_min(1)
        means_pkm = (classes_pnk.mT @ z_pnm) / counts_pk.clamp_min(1)[..., None]
        squares_p = (z_pnm.square().sum(dim=2) * valid_pn).sum(dim=1) / n_p
        return Features(counts_pk / n_p[:, None], means_pkm, squares_p)

    def aligned_gradient(self, s: AlignedState) -> GradientFunction | None:
        """Return the gradient of the local loss + lambda E |z - c_y|^2 / m, y the class of z."""
        # None if every peer descends the local loss, as those without prototypes do.
        if not self.lambda_ or not s.aligned.any():
            return None

        def gradient(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            gradients = self.engine.gradients(x_pd, buffers, batch)
            batch = replace(batch, counts_e=batch.counts_e * s.aligned)
            pull_pd = self.engine.feature_gradients(x_pd, buffers, batch, s.prototypes)
            return gradients._replace(values=gradients.values + self.lambda_ * pull_pd)

        return gradient

    def class_weights(self, inbox: Inbox) -> Floats:
        """Return the weight of each peer's examples of a class among those known, (K, P, n)."""
        # Rows sum to 1, and are 0 for a class that nobody has. Letters may hold any shares, so
        # these are clipped to [0, 1].
        shares_ks = inbox["shares"].clamp(0, 1).double().cpu().numpy().T
        known_pn = inbox.heard | (self.eye() > 0)
        weight_pn = known_pn * inbox.discount * self.engine.samples
        w_kpn = inbox.by_peer(shares_ks)[:, None] * weight_pn
        total_kp1 = w_kpn.sum(axis=2, keepdims=True)
        return np.asarray(w_kpn / np.where(total_kp1 > 0, total_kp1, 1.0))

    def realigned(self, s: A, inbox: Inbox, w_kpn: Floats) -> A:
        """Return the state with means of the received prototypes; a class without any keeps its."""
        prototypes_pkm = s.prototypes.clone()
        for k, w_pn in enumerate(w_kpn):
            mean_pm = self.engine.mix(w_pn[:, inbox.authors], inbox["prototypes"][:, k])
            some_p1 = self.engine.tensor(w_pn.any(axis=1, keepdims=True)) > 0
            prototypes_pkm[:, k] = mean_pm.where(some_p1, s.prototypes[:, k])
        return replace(s, prototypes=prototypes_pkm, aligned=np.ones_like(s.aligned))


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
