"""Class prototypes: mean features of the classes, their means over peers, and the pull to them.

Legend: z are the m inputs of a network's last layer (features), k = classes, p = peers of this
node, n = all peers or their examples, s = rows of letters, d = parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np

from coterie.clients.letters import Bools, Letters
from coterie.clients.rule import Averages, Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Engine, GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers
    from coterie.datasets.problem import Problem


_ONE_LAYER = (
    "a network of one layer has no features but its inputs, and letters would hold their means: "
    'set model = "mlp", or another network with a hidden layer'
)


class Features(NamedTuple):
    """Statistics of the features of training examples, in float64.

    Attributes
    ----------
    shares : Tensor, (P, K)
        Share of each class.
    means : Tensor, (P, K, m)
        Mean features of each class; 0 for a class without examples.
    squares : Tensor, (P,)
        Mean of |z|^2.
    """

    shares: Tensor
    means: Tensor
    squares: Tensor


@dataclass(frozen=True)
class AlignedOptions:
    """Options of methods that align features by class.

    Attributes
    ----------
    lambda_ : float
        Strength with which the features of a class are pulled towards their mean over all peers; 0
        for none.
    """

    lambda_: Annotated[float, Range(0)] = 1.0
    grid: ClassVar[Grid] = {"lambda": (0.1, 1.0, 10.0)}

    def check(self, config: Any) -> None:
        """Reject a network without features."""
        if config.network == "linear":
            raise ValueError(_ONE_LAYER)

    def fits(self, problem: Problem) -> None:
        """Reject problems without one class per example."""
        if problem.task != "classification":
            raise ValueError(
                f"needs one class per example, but {problem.name} is a {problem.task} problem: "
                "choose a data set with classes, or another method"
            )


@dataclass(frozen=True)
class AlignedState(State):
    """State of methods that align features by class.

    Attributes
    ----------
    prototypes : Tensor, (P, K, m)
        Mean features of the classes over all peers; 0 for a class that nobody has.
    aligned : ndarray of bool, (P,)
        Peers that have received or computed prototypes.
    """

    prototypes: Tensor
    aligned: Bools


class Prototypes(Averages):
    """Averages of class prototypes over peers, for the rules of methods."""

    def __init__(self, engine: Engine, options: Any, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        below = engine.network.below_head(engine.network.module)
        if next(below.module.parameters(), None) is None:
            raise ValueError(_ONE_LAYER)

    def no_prototypes(self, state: State) -> Tensor:
        """Return prototypes (P, K, m) before any are known."""
        features_pnm = self.engine.embeddings(state.x, state.buffers, "train")
        return state.x.new_zeros(len(state.x), self.engine.outputs, features_pnm.shape[2])

    def features(self, state: State) -> Features:
        """Compute the statistics of the peers' training examples."""
        engine = self.engine
        shard, certain = engine.data.shards["train"], engine.task.certain
        assert certain is not None
        z_pnm = engine.embeddings(state.x, state.buffers, "train").double()
        valid_pn = engine.tensor(np.arange(z_pnm.shape[1]) < shard.lengths_p[:, None]).double()
        classes_pnk = certain(shard.targets_pn[:, : z_pnm.shape[1]], engine.outputs)
        classes_pnk = classes_pnk.double() * valid_pn[..., None]
        counts_pk, n_p = classes_pnk.sum(dim=1), valid_pn.sum(dim=1).clamp_min(1)
        means_pkm = (classes_pnk.mT @ z_pnm) / counts_pk.clamp_min(1)[..., None]
        squares_p = (z_pnm.square().sum(dim=2) * valid_pn).sum(dim=1) / n_p
        return Features(counts_pk / n_p[:, None], means_pkm, squares_p)

    def aligned_gradient(self, prototypes_pkm: Tensor, aligned_p: Bools) -> GradientFunction | None:
        """Return the gradient of the local loss + lambda E |z - c_y|^2 / m, y an example's class.

        Parameters
        ----------
        prototypes_pkm : Tensor, (P, K, m)
            Prototypes c_k of each peer.
        aligned_p : ndarray of bool, (P,)
            Peers that have prototypes; the others descend the local loss.

        Returns
        -------
        callable or None
            None if every peer descends the local loss.
        """
        if not self.options.lambda_ or not aligned_p.any():
            return None

        def gradient(x_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            gradients = self.engine.gradients(x_pd, buffers, batch)
            batch = replace(batch, counts_e=batch.counts_e * aligned_p)
            pull_pd = self.engine.feature_gradients(x_pd, buffers, batch, prototypes_pkm)
            return gradients._replace(values=gradients.values + self.options.lambda_ * pull_pd)

        return gradient

    def class_weights(self, offers: Letters) -> Floats:
        """Return the weight of each peer's examples of a class among those known, (K, P, n).

        Rows sum to 1, and are 0 for a class that nobody has. Letters may hold any shares, so these
        are clipped to [0, 1].
        """
        shares_ks = offers["shares"].clamp(0, 1).double().cpu().numpy().T
        known_pn = offers.senders_to(self.engine.peers, self.engine.n) | (self.eye() > 0)
        authors, freshness_n = offers.authors, self.freshness(offers)
        w_kpn = np.zeros((len(shares_ks), *known_pn.shape))
        w_kpn[:, :, authors] = (
            shares_ks[:, None] * (known_pn * freshness_n * self.engine.samples)[:, authors]
        )
        total_kp1 = w_kpn.sum(axis=2, keepdims=True)
        return np.asarray(w_kpn / np.where(total_kp1 > 0, total_kp1, 1.0))

    def mean_prototypes(self, known_pkm: Tensor, offers: Letters, w_kpn: Floats) -> Tensor:
        """Return the prototypes (P, K, m) with these weights; of a class without any, `known`."""
        prototypes_pkm = known_pkm.clone()
        for k, w_pn in enumerate(w_kpn):
            mean_pm = self.engine.mix(w_pn[:, offers.authors], offers["prototypes"][:, k])
            some_p1 = self.engine.tensor(w_pn.any(axis=1, keepdims=True)) > 0
            prototypes_pkm[:, k] = mean_pm.where(some_p1, known_pkm[:, k])
        return prototypes_pkm
