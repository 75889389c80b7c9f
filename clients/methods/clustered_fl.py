"""Clustered federated learning: FedAvg in clusters that split when their peers' updates diverge.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints", IEEE TNNLS 2021, algorithms 1 and 3. Symbols: theta_c
`state.x` of every member of cluster c, Delta theta_i the update from there to peer i's trained
model, eps_1 `eps1`, eps_2 `eps2`, alpha_ik the cosine similarity of two updates. In
a round each peer

1. trains on its own data and receives the models of its cluster, at first of all peers;
2. if the cluster is at a stationary point but its peers are not,
   |sum_i p_i Delta theta_i| < eps_1 and max_i |Delta theta_i| > eps_2,
   splits it into the two parts with the smallest maximum similarity across them:
   argmin over bipartitions of max_{i in one, k in the other} alpha_ik  (equation 20);
3. averages with the peers left in its cluster: theta_c = sum_i p_i x_i.

All peers of a cluster see the same models and so decide alike; once split, the parts never exchange
models again.

Readings and deviations: the bipartition is the paper's optimal one (the authors' code uses complete
linkage, which may cut differently); a cluster of two may split too. The norms are those of a whole
round's update, so eps_1 and eps_2 depend on learning rate and local steps. The paper's additional
test, gamma_max, is left out, as in the code. A peer whose model is missing stays in the cluster and
does not influence a split. A peer that returns after many rounds has a model far from theta_c,
which may look like divergence and split it off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import State
from coterie.ranges import option
from coterie.strategies.plans import Wanted


@dataclass(frozen=True)
class ClusteredState(State):
    """State of clustered FL."""

    theta: Tensor  # cluster models, where the training of a round starts, (P, d)
    members: Bools  # peers in each peer's cluster, itself included, (P, n)


class ClusteredFL(
    LocalTraining[ClusteredState], strategy=Wanted, group="groups", learns_graph=True
):
    """FedAvg in clusters that split."""

    eps1: float = option(
        0.4, "A cluster is at a stationary point if its mean update is shorter.",
        low=0, grid=(0.1, 0.4, 1.6),
    )  # fmt: skip
    eps2: float = option(1.6, "A peer is not at a stationary point if its update is longer.", low=0)

    def init(self) -> ClusteredState:
        start = self.start()
        return self.begin(start, theta=start.x, members=np.ones(self.near.shape, dtype=np.bool_))

    def wants(self, s: ClusteredState, t: int) -> Bools:
        return s.members

    def update(self, s: ClusteredState, inbox: Inbox) -> ClusteredState:
        present, members = inbox.present & s.members, s.members.copy()
        for p, products in enumerate(self._update_products(s, inbox)):
            rows = np.flatnonzero(present[p, inbox.authors])
            authors, gram = inbox.authors[rows], products[np.ix_(rows, rows)]
            if self._diverges(gram, self.engine.samples[authors]):
                first = bipartition(gram)
                members[p, authors] = first == first[authors == self.engine.peers[p]]
        x_pd = inbox.average("x", self.shares() * members)
        return replace(s, x=x_pd, theta=x_pd, members=members)

    def weights(self, s: ClusteredState) -> Floats:
        weights_pn = self.shares() * s.members
        weights_pn /= weights_pn.sum(axis=1, keepdims=True)
        return weights_pn

    def _update_products(self, s: ClusteredState, inbox: Inbox) -> Floats:
        """Return the inner products (P, S, S) of all authors' updates from each peer's theta."""
        engine, x_sd = self.engine, inbox["x"]
        if inbox.round == 1:  # a problem may prescribe different starts
            y_sd = x_sd - engine.origins(inbox.authors)
            products: Floats = engine.products(y_sd, y_sd)
            return np.broadcast_to(products, (len(s.x), *products.shape))
        origin_1d = s.theta[:1]  # avoids cancellation: inner products of short vectors
        y_sd, from_pd = x_sd - origin_1d, s.theta - origin_1d
        across_ps = engine.products(from_pd, y_sd)
        back_p = engine.inner(from_pd, from_pd).cpu().numpy()
        products = engine.products(y_sd, y_sd) + back_p[:, None, None]
        return products - across_ps[:, :, None] - across_ps[:, None, :]

    def _diverges(self, gram: Floats, samples: Floats) -> bool:
        """Return True if the mean update is short while some update is long."""
        shares = samples / samples.sum()
        mean = max(float(shares @ gram @ shares), 0.0) ** 0.5  # rounding may give less than 0
        longest = max(float(gram.diagonal().max()), 0.0) ** 0.5
        return len(gram) > 1 and mean < self.eps1 and longest > self.eps2


def bipartition(gram: Floats) -> Bools:
    """Split vectors with inner products `gram` at the smallest maximum cosine across the cut."""
    # Single linkage: the most similar parts are merged until two are left; the mask is of the part
    # that holds the first vector.
    lengths = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    lengths = np.where(lengths > 0, lengths, np.inf)
    cosines = np.round(gram / np.outer(lengths, lengths), 9)  # ignore differences by rounding
    i_e, k_e = np.triu_indices(len(gram), 1)
    part, parts = np.arange(len(gram)), len(gram)
    for e in np.argsort(-cosines[i_e, k_e], kind="stable"):
        i, k = part[i_e[e]], part[k_e[e]]
        if parts > 2 and i != k:
            part[part == k] = i
            parts -= 1
    first: Bools = part == part[0]
    return first
