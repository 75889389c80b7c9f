"""IFCA: K cluster models, of which each peer trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS
2020, algorithm 1 with model averaging. Symbols: theta_k `state.centres`, s_ik = 1 where k is
`state.choice` of peer i, K `clusters`. In a round each peer

1. trains theta_k of k = argmin_k f_i(theta_k), its loss on all its training data;
2. receives all peers' models and choices, and sets theta_k to the mean over the peers that chose k,
   sum_i s_ik p_i x_i / sum_i s_ik p_i; a model that no peer chose does not change.

Its personal model is the theta_k that fits best after that.

Readings and deviations: means are weighted by the training samples, p_i, as in FedAvg (the paper's
peers have the same number), so K = 1 is FedAvg. The K models are different random draws, known to
every peer, or with `starts` = "common" all FedAvg's start; where a problem prescribes starts, the
k-th model is that of peer k. Losses that differ only by rounding are ties, won by the first model:
from a common start all peers train it, as in FedAvg, until it fits some of them worse than the
start. A peer has one set of batch-norm statistics for all K models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from coterie.clients.hints import Bools, Buffers, Engine, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Clustered, Weighted, true_clusters
from coterie.ranges import option


@dataclass(frozen=True)
class IfcaState(Weighted):
    """State of IFCA; `w` has the weights of the average that gave each peer's model."""

    centres: Tensor  # cluster models, (P, K, d)
    choice: Ints  # model that fits each peer best, (P,)


class Ifca(LocalTraining[IfcaState], group="groups", learns_graph=True, exposes=CHOOSES_WEIGHTS):
    """K models, each trained by the peers that it fits best."""

    clusters: int = option(
        0,
        "Number of models K; 0 for the true number of clusters, which only synthetic partitions "
        "know.",
        low=0,
    )
    starts: Literal["different", "common"] = option(
        "different",
        "Start of the K models: different random draws, or FedAvg's start for all of them.",
    )

    def models_kept(self, peers: int) -> int:
        return max(1, self.clusters)

    def check_data(self, problem: Clustered) -> None:
        self.number(problem)

    def number(self, problem: Clustered) -> int:
        """Return K for a problem."""
        return self.clusters or len(np.unique(true_clusters(problem, "set ifca.clusters")))

    @cached_property
    def k(self) -> int:
        """Number of models."""
        return self.number(self.engine)

    def init(self) -> IfcaState:
        start = self.start()
        if self.starts == "common":
            centres_pkd = start.x[:, None].expand(-1, self.k, -1)
        else:
            centres_pkd = self.engine.starts(self.k).expand(len(start.x), -1, -1)
        choice = best_of(self.engine, centres_pkd, start.buffers)
        start = replace(start, x=centres_pkd[np.arange(len(choice)), choice])
        return self.begin(start, centres=centres_pkd, choice=choice)

    def offer(self, s: IfcaState, t: int) -> tuple[IfcaState, Mapping[str, Tensor]]:
        s = self.train(s, t)
        return s, {"x": s.x, "cluster": self.engine.tensor(s.choice)}

    def update(self, s: IfcaState, inbox: Inbox) -> IfcaState:
        w_pkn = (self.shares() * inbox.present)[:, None] * choosers(inbox, self.k)
        total_pk = w_pkn.sum(axis=2)
        filled_pk = total_pk > 0
        w_pkn /= np.where(filled_pk, total_pk, 1.0)[:, :, None]
        w_qn = inbox.discounted(w_pkn.reshape(-1, self.engine.n))  # q: a peer's copy of a model
        filled_pk1 = self.engine.tensor(filled_pk[:, :, None]) > 0
        means_pkd = inbox.mix("x", w_qn).view(-1, self.k, self.engine.d)
        centres_pkd = means_pkd.where(filled_pk1, s.centres)
        choice = best_of(self.engine, centres_pkd, s.buffers)
        chosen = np.arange(len(choice)), choice
        w_pn = w_qn.reshape(w_pkn.shape)[chosen]
        w_pn = np.where(filled_pk[chosen][:, None], w_pn, self.eye())
        return replace(s, x=centres_pkd[chosen], centres=centres_pkd, choice=choice, w=w_pn)


def choosers(inbox: Inbox, models: int) -> Bools:
    """Return which peers offer a model that they trained as cluster k, (K, n)."""
    chose_ks = inbox["cluster"].cpu().numpy() == np.arange(models)[:, None]
    return inbox.by_peer(chose_ks) > 0


def best_of(engine: Engine, models_pkd: Tensor, buffers: Buffers) -> Ints:
    """Return which of K models has the smallest loss on each peer's training data, (P,)."""
    # Losses that differ only by rounding are ties, won by the first model.
    models = models_pkd.shape[1]
    peers_e = np.repeat(np.arange(len(models_pkd)), models)
    buffers = {name: value[peers_e] for name, value in buffers.items()}
    losses = engine.losses(models_pkd.flatten(0, 1), buffers, "train", peers_e).losses
    losses_pk = losses.cpu().numpy().reshape(-1, models)
    best: Ints = (losses_pk <= losses_pk.min(axis=1, keepdims=True) * (1 + 1e-6)).argmax(axis=1)
    return best
