"""PENS: peers whose models do well on a peer's data in the first rounds become its neighbours.

Onoszko, Karlsson, Mogren, Listo Zec, "Decentralized federated learning of deep neural networks on
non-iid data", FL-ICML 2021, section 3, and the authors' code (guskarls/dfl-pens@92ce009) with that
of DAC (edvinli/DAC@45209fd). Symbols: w_i `state.x`, the number of times that i selected j
`state.counts`, m `models`, n_k the number of training samples. In a round each peer trains
on its own data; then, in the first `selection-rounds` rounds, it

1. pulls the models of m random peers, and selects the `best` ones with the smallest loss on its
   training data;
2. w_i <- sum_k n_k w_k / sum_k n_k over the selected models and its own.

Its neighbours are the peers that it selected more often than a random choice would, whose expected
count is the mean count. In every later round it pulls the models of m random neighbours, and
averages with all of them.

Readings and deviations: a round here begins with training and ends with the average, see
`coterie.clients.methods.dac`; all peers average at the same time. The expected count is that of a
choice among the peer's neighbours in the topology, best * selection-rounds / (n - 1) on a full one
(DAC's code divides by n; dfl-pens compares with the expected number of pulls less 1). It is
computed as the mean of the counts, so that missing models do not raise it. If no peer is above it,
all counts are equal and every peer is a neighbour. The optimizer's state is kept across averages.
Batch-norm buffers stay personal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.clients.hints import Bools, Floats
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import highest
from coterie.clients.parts.validation import CHOOSES_MODELS
from coterie.clients.rule import Weighted
from coterie.ranges import option
from coterie.strategies.wanted import Wanted


@dataclass(frozen=True)
class PENSState(Weighted):
    """State of PENS."""

    counts: Floats  # number of times that each peer selected every other, (P, n)


class PENS(
    LocalTraining[PENSState], strategy=Wanted, group="unknown", learns_graph=True,
    exposes=CHOOSES_MODELS,
):  # fmt: skip
    """Neighbours are peers whose models often had the smallest losses."""

    models: int = option(10, "Number of models that each peer pulls per round, m.", low=1)
    best: int = option(
        2, "Number of these that it averages with in a selection round.", low=1, grid=(1, 2, 4)
    )
    selection_rounds: int = option(
        10, "Number of rounds in which peers select; then the neighbours are fixed.", low=1
    )

    def init(self) -> PENSState:
        return self.begin(counts=np.zeros_like(self.eye()))

    def wants(self, s: PENSState, t: int) -> Bools:
        candidates = self.near if t <= self.selection_rounds else self.neighbours(s)
        wanted = np.zeros_like(candidates)
        for p, g in enumerate(self.draws(t)):
            shuffled = g.permutation(self.engine.n)
            wanted[p, shuffled[candidates[p, shuffled]][: self.models]] = True
        return wanted

    def update(self, s: PENSState, inbox: Inbox) -> PENSState:
        counts, used = s.counts, inbox.heard
        if inbox.round <= self.selection_rounds:
            used = highest(-inbox.losses(s, "train"), self.best)
            counts = counts + used
        shares_pn = self.shares() * (used | (self.eye() > 0))
        x_pd, w_pn = inbox.average("x", shares_pn), inbox.shares(shares_pn)
        return replace(s, x=x_pd, counts=counts, w=w_pn)

    def neighbours(self, s: PENSState) -> Bools:
        """Return a mask (P, n) of the peers that each peer selected more often than expected."""
        near = self.near
        expected_p1 = (s.counts * near).sum(axis=1, keepdims=True)
        expected_p1 /= np.maximum(near.sum(axis=1, keepdims=True), 1)
        often = near & (s.counts > expected_p1)
        return np.where(often.any(axis=1, keepdims=True), often, near)
