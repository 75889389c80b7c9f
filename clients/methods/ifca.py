"""IFCA: K cluster models, of which each peer trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
2020, algorithm 1 with model averaging. Symbols: theta_k `state.centres`, s_ik = 1 where k is
`state.choice` of peer i, K `options.clusters`. In a round each peer

1. trains theta_k of k = argmin_k f_i(theta_k), its loss on all its training data;
2. receives all peers' models and choices, and sets theta_k to the mean over the peers that chose k,
   sum_i s_ik p_i x_i / sum_i s_ik p_i; a model that no peer chose does not change.

Its personal model is the theta_k that fits best after that.

Readings and deviations: means are weighted by the training samples, p_i, as in FedAvg (the paper's
peers have the same number), so K = 1 is FedAvg. The K models are different random draws, known to
every peer; where a problem prescribes starts, the k-th model is that of peer k. Losses that differ
only by rounding are ties, won by the first model: models with the same start separate once the
first one fits some peers worse than the next. A peer has one set of batch-norm statistics for all K
models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Clustered, Floats, State, true_clusters
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """Options of IFCA.

    Attributes
    ----------
    clusters : int
        Number of models K; 0 for the true number of clusters, which only synthetic partitions know.
    """

    clusters: Annotated[int, Range(0)] = 0

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps."""
        return max(1, self.clusters)

    def fits(self, problem: Clustered) -> None:
        """Reject `clusters` = 0 on a problem without known clusters."""
        self.number(problem)

    def number(self, problem: Clustered) -> int:
        """Return K for a problem."""
        return self.clusters or len(np.unique(true_clusters(problem, "set ifca.clusters")))


@dataclass(frozen=True)
class IfcaState(State):
    """State of IFCA.

    Attributes
    ----------
    centres : Tensor, (P, K, d)
        Cluster models.
    choice : ndarray of int, (P,)
        Model that fits each peer best.
    w : ndarray, (P, n)
        Weights of the average that gave that model.
    """

    centres: Tensor
    choice: Ints
    w: Floats


class Ifca(LocalTraining[IfcaState]):
    """FedAvg among the peers that chose the same of K models."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._k = options.number(engine)

    def init(self) -> IfcaState:
        start = self.start()
        centres_pkd = self.engine.starts(self._k).expand(len(start.x), -1, -1)
        choice = best_of(self.engine, centres_pkd, start.buffers)
        state = IfcaState(**vars(start), centres=centres_pkd, choice=choice, w=self.eye())
        return replace(state, x=centres_pkd[np.arange(len(choice)), choice])

    def offer(self, state: IfcaState, round_: int) -> tuple[IfcaState, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        return state, {"x": state.x, "cluster": self.engine.tensor(state.choice)}

    def update(
        self, state: IfcaState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> IfcaState:
        n, d = self.engine.n, self.engine.d
        w_pkn = (self.shares() * self.present(offers))[:, None] * choosers(offers, self._k, n)
        total_pk = w_pkn.sum(axis=2)
        filled_pk = total_pk > 0
        w_pkn /= np.where(filled_pk, total_pk, 1.0)[:, :, None]
        w_pkn = self.discounted(w_pkn.reshape(-1, n), offers).reshape(w_pkn.shape)
        means = self.engine.mix(w_pkn.reshape(-1, n)[:, offers.authors], offers["x"])
        filled_pk1 = self.engine.tensor(filled_pk[:, :, None]) > 0
        centres_pkd = means.view(-1, self._k, d).where(filled_pk1, state.centres)
        choice = best_of(self.engine, centres_pkd, state.buffers)
        chosen = np.arange(len(choice)), choice
        w_pn = np.where(filled_pk[chosen][:, None], w_pkn[chosen], self.eye())
        return replace(state, x=centres_pkd[chosen], centres=centres_pkd, choice=choice, w=w_pn)

    def weights(self, state: IfcaState) -> Floats:
        return state.w


def choosers(offers: Letters, models: int, peers: int) -> Bools:
    """Return which peers offer a model that they trained as cluster k, (K, n)."""
    chose_kn = np.zeros((models, peers), dtype=np.bool_)
    chose_kn[:, offers.authors] = offers["cluster"].cpu().numpy() == np.arange(models)[:, None]
    return chose_kn


def best_of(engine: Engine, models_pkd: Tensor, buffers: Buffers) -> Ints:
    """Return which of K models has the smallest loss on each peer's training data, (P,).

    Losses that differ only by rounding are ties, won by the first model.
    """
    models = models_pkd.shape[1]
    peers_e = np.repeat(np.arange(len(models_pkd)), models)
    buffers = {name: value[peers_e] for name, value in buffers.items()}
    losses = engine.losses(models_pkd.flatten(0, 1), buffers, "train", peers_e).losses
    losses_pk = losses.cpu().numpy().reshape(-1, models)
    best: Ints = (losses_pk <= losses_pk.min(axis=1, keepdims=True) * (1 + 1e-6)).argmax(axis=1)
    return best
