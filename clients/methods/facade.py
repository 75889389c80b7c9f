"""Facade: a shared core, and K heads of which each peer trains the one that fits its data best.

Biswas, Kermarrec, Sharma, Trinca, de Vos, "Fair Decentralized Learning", SaTML 2025, algorithm 1.
Symbols: the head is the network's last layer, the core the rest; c_i the core of `state.x`, h_i^k
`state.heads`, k_i `state.choice`, K `options.clusters`. In a round each peer

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
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from coterie.clients.letters import Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.methods.ifca import best_of, choosers
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


@dataclass(frozen=True)
class Options:
    """Options of Facade.

    Attributes
    ----------
    clusters : int
        Number of heads K; better too many than too few.
    """

    clusters: Annotated[int, Range(1)] = 4
    grid: ClassVar[Grid] = {"clusters": (2, 4, 8)}

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps."""
        return self.clusters


@dataclass(frozen=True)
class FacadeState(State):
    """State of Facade.

    Attributes
    ----------
    heads : Tensor, (P, K, h)
        Heads.
    choice : ndarray of int, (P,)
        Head that fits each peer best.
    w : ndarray, (P, n)
        Weights of the average that gave that head.
    """

    heads: Tensor
    choice: Ints
    w: Floats


class Facade(LocalTraining[FacadeState]):
    """One core for all peers, and K heads that are averaged among the peers that chose them."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self.head = engine.network.columns(engine.network.head).to(engine.device)

    def init(self) -> FacadeState:
        start, k = self.start(), self.options.clusters
        heads_pkh = self.engine.starts(k)[:, self.head].expand(len(start.x), -1, -1)
        choice = np.zeros(len(start.x), dtype=np.int64)
        state = FacadeState(**vars(start), heads=heads_pkh, choice=choice, w=self.eye())
        return self._chosen(state, np.tile(self.eye()[:, None], (1, k, 1)))

    def offer(self, state: FacadeState, round_: int) -> tuple[FacadeState, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        heads_pkh = state.heads.clone()
        heads_pkh[np.arange(len(state.choice)), state.choice] = state.x[:, self.head]
        offers = {"x": state.x, "cluster": self.engine.tensor(state.choice)}
        return replace(state, heads=heads_pkh), offers

    def update(
        self, state: FacadeState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FacadeState:
        peers, n = self.engine.peers, self.engine.n
        x_pd = self.average(offers, "x", np.ones_like(state.w))
        chose_kn = choosers(offers, self.options.clusters, n)
        w_pkn = (offers.senders_to(peers, n) * self.freshness(offers))[:, None] * chose_kn
        own_pk = 1.0 - (np.isin(peers, offers.expired)[:, None] & w_pkn.any(axis=2))
        total_pk = w_pkn.sum(axis=2) + own_pk
        w_pkn, own_pk = w_pkn / total_pk[:, :, None], own_pk / total_pk
        received = self.engine.mix(
            w_pkn.reshape(-1, n)[:, offers.authors], offers["x"][:, self.head]
        )
        own_pk1 = self.engine.tensor(own_pk[:, :, None])
        heads_pkh = received.view(state.heads.shape) + own_pk1 * state.heads
        state = replace(state, x=x_pd, heads=heads_pkh)
        return self._chosen(state, w_pkn + own_pk[:, :, None] * self.eye()[:, None])

    def weights(self, state: FacadeState) -> Floats:
        return state.w

    def _chosen(self, state: FacadeState, w_pkn: Floats) -> FacadeState:
        """Return the state with the head that fits best in each model; `w_pkn` made the heads."""
        models_pkd = state.x[:, None].repeat(1, self.options.clusters, 1)
        models_pkd[:, :, self.head] = state.heads
        choice = best_of(self.engine, models_pkd, state.buffers)
        chosen = np.arange(len(choice)), choice
        return replace(state, x=models_pkd[chosen], choice=choice, w=w_pkn[chosen])
