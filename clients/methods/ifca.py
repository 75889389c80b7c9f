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

Facade: a shared core, and K heads of which each peer trains the one that fits its data best.

Biswas, Kermarrec, Sharma, Trinca, de Vos, "Fair Decentralized Learning", SaTML 2025, algorithm 1.
Symbols: the head is the network's last layer, the core the rest; c_i the core of `state.x`, h_i^k
`state.heads`, k_i `state.choice`, K `clusters`. In a round each peer

1. trains core and head (c_i, h_i^k) of k = k_i, and sends both with k_i;
2. sets c_i to the mean of the cores that it received and its own, and each h_i^k to the mean of its
   own h_i^k and the heads that it received with the number k;
3. chooses k_i = argmin_k f_i(c_i, h_i^k).

Its personal model is the core with the chosen head.

Readings and deviations: means are unweighted, as in the paper, unlike those of `ifca`. A peer
chooses by its loss on all its training data (the paper: on one minibatch; the code: on ten). The K
heads are different random draws, known to every peer, below one core; where a problem prescribes
starts, the k-th head is that of peer k. Losses that differ only by rounding are ties, won by the
first head. The paper's topology is a random 4-regular graph per round; `topology = "epidemic"`
resembles it. The code's final exchange between all peers is left out. A network of one layer has no
core. A peer has one set of batch-norm statistics for all heads. An old model has a smaller weight.
The paper's experiments have two clusters and K = 2; the default is 4, because heads that nobody
chooses cost no bytes, and with more heads peers settle less often on one that fits them badly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from coterie.clients.hints import Bools, Buffers, Engine, Floats, Ints, Tensor
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
        return self.clusters or len(np.unique(true_clusters(problem, "set ifca.clusters")))

    @cached_property
    def k(self) -> int:
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


@dataclass(frozen=True)
class FacadeState(Weighted):
    """State of Facade; `w` has the weights of the average that gave each peer's head."""

    heads: Tensor  # (P, K, h)
    choice: Ints  # head that fits each peer best, (P,)


class Facade(
    LocalTraining[FacadeState], group="groups", learns_graph=True, exposes=CHOOSES_WEIGHTS
):
    """One core, and K heads, each trained by the peers that it fits best."""

    clusters: int = option(
        4, "Number of heads K; better too many than too few.", low=1, grid=(2, 4, 8)
    )

    def models_kept(self, peers: int) -> int:
        return self.clusters

    def init(self) -> FacadeState:
        start, k = self.start(), self.clusters
        heads_pkh = self.engine.starts(k)[:, self.head].expand(len(start.x), -1, -1)
        s = self.begin(start, heads=heads_pkh, choice=np.zeros(len(start.x), dtype=np.int64))
        return self._chosen(s, np.tile(self.eye()[:, None], (1, k, 1)))

    def offer(self, s: FacadeState, t: int) -> tuple[FacadeState, Mapping[str, Tensor]]:
        s = self.train(s, t)
        heads_pkh = s.heads.clone()
        heads_pkh[np.arange(len(s.choice)), s.choice] = s.x[:, self.head]
        return replace(s, heads=heads_pkh), {"x": s.x, "cluster": self.engine.tensor(s.choice)}

    def update(self, s: FacadeState, inbox: Inbox) -> FacadeState:
        x_pd = inbox.average("x", np.ones_like(s.w))
        w_pkn = inbox.freshness[:, None] * choosers(inbox, self.clusters)
        expired_p = np.isin(self.engine.peers, inbox.offers.expired)
        own_pk = 1.0 - (expired_p[:, None] & w_pkn.any(axis=2))
        total_pk = w_pkn.sum(axis=2) + own_pk
        w_pkn, own_pk = w_pkn / total_pk[:, :, None], own_pk / total_pk
        w_qs = w_pkn.reshape(-1, self.engine.n)[:, inbox.authors]  # q: a peer's copy of a head
        received = self.engine.mix(w_qs, inbox["x"][:, self.head])
        own_pk1 = self.engine.tensor(own_pk[:, :, None])
        heads_pkh = received.view(s.heads.shape) + own_pk1 * s.heads
        s = replace(s, x=x_pd, heads=heads_pkh)
        return self._chosen(s, w_pkn + own_pk[:, :, None] * self.eye()[:, None])

    def _chosen(self, s: FacadeState, w_pkn: Floats) -> FacadeState:
        """Return the state with the head that fits best in each model; `w_pkn` made the heads."""
        models_pkd = s.x[:, None].repeat(1, self.clusters, 1)
        models_pkd[:, :, self.head] = s.heads
        choice = best_of(self.engine, models_pkd, s.buffers)
        chosen = np.arange(len(choice)), choice
        return replace(s, x=models_pkd[chosen], choice=choice, w=w_pkn[chosen])
