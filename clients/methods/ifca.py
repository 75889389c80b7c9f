"""IFCA: K cluster models; each peer trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
2020, algorithm 1 with model averaging. Symbols: theta_k `state.centres`, s_ik = 1 where k is
`state.choice` of peer i, K `options.clusters`. In a round each peer

1. trains theta_k of k = argmin_k f_i(theta_k), its loss on all its training data;
2. receives all peers' models and choices, and sets theta_k to the mean over those who chose k,
   sum_i s_ik p_i x_i / sum_i s_ik p_i; a model that nobody chose stays.

Its personal model is the theta_k that fits best after that.

Readings and deviations: means weigh by the training samples, p_i, as FedAvg does (the paper's peers
have equally many), so K = 1 is FedAvg. The K models are different draws that every peer knows; a
problem that prescribes starts gives the k-th model that of peer k. Losses that differ by rounding
only are equal and the first model wins: models that start alike part once those whom the first one
has left behind take the next. A peer has one set of batch-norm statistics, whichever it trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.clients.letters import Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Clustered, Floats, State, true_clusters

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """IFCA's knob.

    Attributes
    ----------
    clusters : number of models K; 0 takes the true number, which only synthetic splits know.
    """

    clusters: int = 0

    def __post_init__(self) -> None:
        if self.clusters < 0:
            raise ValueError("clusters must not be negative")

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps."""
        return max(1, self.clusters)

    def fits(self, problem: Clustered) -> None:
        """Refuse to guess the number of clusters."""
        self.number(problem)

    def number(self, problem: Clustered) -> int:
        """K on a problem."""
        return self.clusters or len(np.unique(true_clusters(problem, "set ifca.clusters")))


@dataclass(frozen=True)
class IfcaState(State):
    """What a peer keeps beside its model.

    Attributes
    ----------
    centres : (P, K, d) the cluster models.
    choice : (P,) the model that fits best.
    w : (P, n) weights of the average that this model was.
    """

    centres: Tensor
    choice: Ints
    w: Floats


class Ifca(LocalTraining[IfcaState]):
    """FedAvg among those who chose the same of K models."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._k = options.number(engine)

    def init(self) -> IfcaState:
        start = self.start()
        centres_pkd = self.engine.starts(self._k).expand(len(start.x), -1, -1)
        choice = self._best(centres_pkd, start.buffers)
        state = IfcaState(**vars(start), centres=centres_pkd, choice=choice, w=self.eye())
        return replace(state, x=centres_pkd[np.arange(len(choice)), choice])

    def offer(self, state: IfcaState, round_: int) -> tuple[IfcaState, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        return state, {"x": state.x, "cluster": self.engine.tensor(state.choice)}

    def update(
        self, state: IfcaState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> IfcaState:
        n, d = self.engine.n, self.engine.d
        chose_kn = np.zeros((self._k, n), dtype=np.bool_)
        chosen_s = offers["cluster"].cpu().numpy()
        chose_kn[:, offers.authors] = chosen_s == np.arange(self._k)[:, None]
        w_pkn = (self.shares() * self.present(offers))[:, None] * chose_kn
        total_pk = w_pkn.sum(axis=2)
        filled_pk = total_pk > 0
        w_pkn /= np.where(filled_pk, total_pk, 1.0)[:, :, None]
        w_pkn = self.discounted(w_pkn.reshape(-1, n), offers).reshape(w_pkn.shape)
        means = self.engine.mix(w_pkn.reshape(-1, n)[:, offers.authors], offers["x"])
        filled_pk1 = self.engine.tensor(filled_pk[:, :, None]) > 0
        centres_pkd = means.view(-1, self._k, d).where(filled_pk1, state.centres)
        choice = self._best(centres_pkd, state.buffers)
        mine = np.arange(len(choice)), choice
        w_pn = np.where(filled_pk[mine][:, None], w_pkn[mine], self.eye())
        return replace(state, x=centres_pkd[mine], centres=centres_pkd, choice=choice, w=w_pn)

    def weights(self, state: IfcaState) -> Floats:
        return state.w

    def _best(self, centres_pkd: Tensor, buffers: Buffers) -> Ints:
        """(P,) the model with the least loss on each peer's training data."""
        of = np.repeat(np.arange(len(centres_pkd)), self._k)
        own = {name: value[of] for name, value in buffers.items()}
        losses = self.engine.losses(centres_pkd.flatten(0, 1), own, "train", of).losses
        losses_pk = losses.cpu().numpy().reshape(-1, self._k)
        best: Ints = (losses_pk <= losses_pk.min(axis=1, keepdims=True) * (1 + 1e-6)).argmax(axis=1)
        return best
