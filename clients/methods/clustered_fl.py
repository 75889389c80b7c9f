"""Clustered federated learning: FedAvg whose cluster splits when its peers pull apart.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints", IEEE TNNLS 2021, algorithms 1 and 3. Symbols: theta_c
`state.x` of every member of cluster c, Delta theta_i the way from there to peer i's trained model,
eps_1 `options.eps1`, eps_2 `options.eps2`, alpha_ik the cosine of two ways. In a round each peer

1. trains on its own data and receives the models of its cluster, at first of all peers;
2. if the cluster is at a stationary point but its peers are not,
   |sum_i p_i Delta theta_i| < eps_1 and max_i |Delta theta_i| > eps_2,
   splits it into the two parts whose closest members are least alike:
   argmin over bipartitions of max_{i in one, k in the other} alpha_ik  (equation 20);
3. averages with those who are still in its cluster: theta_c = sum_i p_i x_i.

Everybody of a cluster decides alone, from the same models, and so alike; once split, the parts
never exchange models again.

Readings and deviations: the bipartition is the paper's optimal one (the authors' code takes
complete linkage instead, which may cut otherwise); a cluster of two may split too. The norms are
those of a whole round's way, so eps_1 and eps_2 go with learning rate and local steps. The paper's
further test, gamma_max, is left out, as in the code. A peer whose model is missing stays in the
cluster, since nothing is known against it, and has no say in a split. One that comes back after
many rounds brings a model far from theta_c, which may look like pulling apart and cut it off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Clustered FL's knobs; both are norms of what one round moves a model.

    Attributes
    ----------
    eps1 : a cluster whose mean moves less is at a stationary point.
    eps2 : a peer that moves more is not.
    """

    eps1: float = 0.4
    eps2: float = 1.6
    grid: ClassVar[Grid] = {"eps1": (0.1, 0.4, 1.6)}

    def __post_init__(self) -> None:
        if self.eps1 < 0 or self.eps2 < 0:
            raise ValueError("eps1 and eps2 must not be negative")


@dataclass(frozen=True)
class ClusteredState(State):
    """What a peer keeps beside its model.

    Attributes
    ----------
    theta : (P, d) the cluster's model, from which the round's training went.
    members : (P, n) who is in the peer's cluster, itself included.
    """

    theta: Tensor
    members: Bools


class ClusteredFL(LocalTraining[ClusteredState]):
    """FedAvg inside clusters that split in two, again and again."""

    def init(self) -> ClusteredState:
        start = self.start()
        everybody = np.ones((len(start.x), self.engine.n), dtype=np.bool_)
        return ClusteredState(**vars(start), theta=start.x, members=everybody)

    def wants(self, state: ClusteredState, round_: int) -> Ints:
        return self.pairs(state.members)

    def update(
        self, state: ClusteredState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> ClusteredState:
        here, members = self.present(offers) & state.members, state.members.copy()
        for p, moves in enumerate(self._moves(state, round_, offers)):
            inside = np.flatnonzero(here[p, offers.authors])
            who, gram = offers.authors[inside], moves[np.ix_(inside, inside)]
            if self._pulls_apart(gram, self.engine.samples[who]):
                first = bipartition(gram)
                members[p, who] = first == first[who == self.engine.peers[p]]
        x_pd = self.average(offers, "x", self.shares() * members)
        return replace(state, x=x_pd, theta=x_pd, members=members)

    def weights(self, state: ClusteredState) -> Floats:
        weights_pn = self.shares() * state.members
        weights_pn /= weights_pn.sum(axis=1, keepdims=True)
        return weights_pn

    def _moves(self, state: ClusteredState, round_: int, offers: Letters) -> Floats:
        """(P, S, S) inner products of the ways that all authors went from each peer's theta."""
        engine, x_sd = self.engine, offers["x"]
        if round_ == 1:  # a problem may prescribe different starts
            y_sd = x_sd - engine.origins(offers.authors)
            moves: Floats = engine.products(y_sd, y_sd)
            return np.broadcast_to(moves, (len(state.x), *moves.shape))
        origin_1d = state.theta[:1]  # inner products of short vectors: nothing large cancels
        y_sd, from_pd = x_sd - origin_1d, state.theta - origin_1d
        across_ps = engine.products(from_pd, y_sd)
        back_p = engine.inner(from_pd, from_pd).cpu().numpy()
        moves = engine.products(y_sd, y_sd) + back_p[:, None, None]
        return moves - across_ps[:, :, None] - across_ps[:, None, :]

    def _pulls_apart(self, gram: Floats, samples: Floats) -> bool:
        """Whether the mean of some ways is short while one of them is long."""
        shares = samples / samples.sum()
        mean = max(float(shares @ gram @ shares), 0.0) ** 0.5  # rounding may leave less than 0
        longest = max(float(gram.diagonal().max()), 0.0) ** 0.5
        return len(gram) > 1 and mean < self.options.eps1 and longest > self.options.eps2


def bipartition(gram: Floats) -> Bools:
    """Cut vectors, given by their inner products, into the two parts that are least alike.

    The largest cosine across the cut is as small as it can be: the most similar two are put
    together, again and again, until two parts are left. True for the part of the first vector.
    """
    lengths = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    lengths = np.where(lengths > 0, lengths, np.inf)
    cosines = np.round(gram / np.outer(lengths, lengths), 9)  # equal but for rounding is equal
    i_e, k_e = np.triu_indices(len(gram), 1)
    part, parts = np.arange(len(gram)), len(gram)
    for e in np.argsort(-cosines[i_e, k_e], kind="stable"):
        i, k = part[i_e[e]], part[k_e[e]]
        if parts > 2 and i != k:
            part[part == k] = i
            parts -= 1
    first: Bools = part == part[0]
    return first
