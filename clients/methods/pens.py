"""PENS: peers whose models do well on a peer's data in the first rounds become its neighbours.

Onoszko, Karlsson, Mogren, Listo Zec, "Decentralized federated learning of deep neural networks on
non-iid data", FL-ICML 2021, section 3, and the authors' code (guskarls/dfl-pens@92ce009) with that
of DAC (edvinli/DAC@45209fd). Symbols: w_i `state.x`, the number of times that i selected j
`state.counts`, m `options.models`, n_k the number of training samples. In a round each peer trains
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
from typing import Annotated, ClassVar

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range


@dataclass(frozen=True)
class Options:
    """Options of PENS.

    Attributes
    ----------
    models : int
        Number of models that each peer pulls per round, m.
    best : int
        Number of these that it averages with in a selection round.
    selection_rounds : int
        Number of rounds in which peers select; then the neighbours are fixed.
    """

    models: Annotated[int, Range(1)] = 10
    best: Annotated[int, Range(1)] = 2
    selection_rounds: Annotated[int, Range(1)] = 10
    grid: ClassVar[Grid] = {"best": (1, 2, 4)}


@dataclass(frozen=True)
class PENSState(State):
    """State of PENS.

    Attributes
    ----------
    counts : ndarray, (P, n)
        Number of times that each peer selected every other.
    w : ndarray, (P, n)
        Weights of the last average.
    """

    counts: Floats
    w: Floats


class PENS(LocalTraining[PENSState]):
    """PENS: select peers by the loss of their models, then gossip with those selected often."""

    def init(self) -> PENSState:
        eye = self.eye()
        return PENSState(**vars(self.start()), counts=np.zeros_like(eye), w=eye)

    def wants(self, state: PENSState, round_: int) -> Ints:
        candidates = self.engine.topology[self.engine.peers]
        if not self._selects(round_):
            candidates = self.neighbours(state)
        wanted = np.zeros_like(candidates)
        for p, i in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(i), round_, Purpose.CHOICE)
            shuffled = g.permutation(self.engine.n)
            wanted[p, shuffled[candidates[p, shuffled]][: self.options.models]] = True
        return self.pairs(wanted)

    def update(
        self, state: PENSState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> PENSState:
        counts, used = state.counts, offers.senders_to(self.engine.peers, self.engine.n)
        if self._selects(round_):
            used = self.selected(state, offers)
            counts = counts + used
        shares_pn = self.shares() * (used | (self.eye() > 0))
        w_pn = self.present_weights(offers, shares_pn)
        return replace(state, x=self.average(offers, "x", shares_pn), counts=counts, w=w_pn)

    def weights(self, state: PENSState) -> Floats:
        return state.w

    def selected(self, state: PENSState, offers: Letters) -> Bools:
        """Return a mask (P, n) of the received models with the smallest losses at each peer."""
        losses_pn = np.full_like(state.counts, np.inf)
        judges = self.local(offers.recipients)
        if len(judges):
            x_ed, buffers = offers["x"][offers.rows], state.buffers_at(judges)
            losses_e = self.engine.losses(x_ed, buffers, "train", judges).losses.cpu().numpy()
            losses_pn[judges, offers.senders] = np.nan_to_num(losses_e, nan=np.inf)
        order_pn = np.argsort(losses_pn, axis=1, kind="stable")[:, : self.options.best]
        best = np.zeros(losses_pn.shape, dtype=np.bool_)
        np.put_along_axis(best, order_pn, values=True, axis=1)
        return best & np.isfinite(losses_pn)

    def neighbours(self, state: PENSState) -> Bools:
        """Return a mask (P, n) of the peers that each peer selected more often than expected."""
        near = self.engine.topology[self.engine.peers]
        expected_p1 = (state.counts * near).sum(axis=1, keepdims=True)
        expected_p1 /= np.maximum(near.sum(axis=1, keepdims=True), 1)
        often = near & (state.counts > expected_p1)
        return np.where(often.any(axis=1, keepdims=True), often, near)

    def _selects(self, round_: int) -> bool:
        return bool(round_ <= self.options.selection_rounds)
