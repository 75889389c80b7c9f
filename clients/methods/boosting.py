"""Boosting: every round each peer fits trees to what is left of its scores, and sends only those.

Gradient boosting (Friedman, "Greedy Function Approximation", Annals of Statistics 2001) whose
stages are added by several peers. Peer i predicts with the scores z_i(x) (logits, or values),
z_i = 0 before round 1. In round t it fits k = `boosted-trees.trees` stages to its training rows,

    h_i = the trees of gradient boosting that starts from z_i,

sends them alone, and adds its own and those that it receives from its neighbours,

    z_i <- z_i + b + sum_j v_j h_j,

with the v and b of `coterie.clients.methods.mixture`, which minimise on its held-out rows R

    sum_{r in R} loss(z_i(x_r) + b + sum_j v_j h_j(x_r), y_r) + ridge / 2 (|v - e_i|^2 + |b|^2),

where the scores of others are clipped to their range on R (`coterie.clients.engine.tasks`).
A later step that would raise the loss on R is not taken: v = 0, b = 0. Held-out rows are the
validation rows, if the run has them, else the training rows with the scores z_i^f of a second chain
per fold f: its own trees h_i^f are fitted to z_i^f without the rows of the fold, all else (the
trees of others, v, b) is shared, and a row is held out in the chain of its own fold.

Laws. One round is stacking. The loss on R never rises from the first round on. With an infinite
`ridge`, or without other models, v = e_i: the peer trains alone, and while the loss on R falls, R
rounds of k stages are one gradient boosting of R k stages at the same learning rate. From the first
round on that would raise it, nothing is added: boosting alone stops early, at a multiple of k.

Readings: the trees of round 1 have the classes' shares (or the mean) as their base, later ones
none. Newton's values at the leaves are scikit-learn's, which starts from the probabilities of z_i;
draws that break ties between splits follow those of former rounds, so that only ties that rounding
decides may differ. Later rounds do not weigh former trees again. Trees of others may know a little
of a held-out row: they were fitted to what scores left to which the peer's former trees were added.
For numbers the loss is divided by twice the mean squared error of z_i + h_i. The map has the sums
of |v_j| over the rounds, normalised.

Legend: p = peers of this node, n = all peers, t = rounds from 0 (no trees yet), c = chains (whole,
then without each fold), m = members of a round (the peer's own trees, then those of its neighbours
in order), a = c and m together, r = rows, k = scores, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from coterie.clients.engine.streams import FOLDS
from coterie.clients.hints import Begun, Bools, Floats, Ints, SplitName, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.mixture import Mixture
from coterie.clients.parts.ensemble import WORST, scale
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Rule, State
from coterie.ranges import option
from coterie.strategies.plans import Wanted

_CHAINS = 1 + FOLDS


@dataclass(frozen=True)
class BoostingState(State):
    """State of boosting; `x` has the peer's newest trees."""

    trees: Tensor  # of each round: own ones, those without each fold, others', (P, 1 + T, A, d)
    v: Floats  # coefficients of the members, (P, 1 + T, M)
    b: Floats  # sum of the offsets of the scores, (P, k)
    low: Floats  # limits of the scores of others' trees, (P, 1 + T, M - 1, k)
    high: Floats


class Boosting(
    Rule[BoostingState], strategy=Wanted, group="unknown", learns_graph=True, validates=True,
    exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Adds trees, own and neighbours', fitted to what is left of the scores; trees only."""

    ridge: float = option(
        1.0, "Strength of the penalty, which is at the peer's own trees.", above=0,
        grid=(0.3, 1.0, 10.0),
    )  # fmt: skip

    any_model: ClassVar[bool] = True
    keeps_rounds: ClassVar[bool] = True
    offers_model: ClassVar[bool] = False

    def check(self, config: Any) -> None:
        if config.network != "boosted-trees":
            raise ValueError(
                f'fits trees to what is left of scores, which model = "{config.network}" is not '
                'made of: set model = "boosted-trees", or choose stacking'
            )

    def models_kept(self, peers: int) -> int:
        return peers + FOLDS

    def init(self) -> BoostingState:
        start, degree = self.start(), int(self.engine.topology.sum(axis=1).max())
        slots = len(start.x), 1 + self.rounds
        v, b = np.zeros((*slots, 1 + degree)), np.zeros((len(start.x), self.engine.outputs))
        v[:, 0, 0] = 1  # until the first step
        trees = start.x.new_zeros((*slots, _CHAINS + degree, self.engine.d))
        wide = np.full((*slots, degree, self.engine.outputs), WORST)
        return self.begin(start, trees=trees, v=v, b=b, low=-wide, high=wide)

    def wants(self, s: BoostingState, t: int) -> Bools:
        return self.near

    def offer(self, s: BoostingState, t: int) -> tuple[BoostingState, Mapping[str, Tensor]]:
        engine, batches, trees = self.engine, self.engine.batches(t), s.trees.clone()
        assert engine.library is not None
        fitting = np.flatnonzero(batches[0].counts_e).tolist() if batches else []
        whole: list[Begun | None] = [None] * len(s.x)
        parts = whole.copy()
        for p in fitting:
            if not s.v[p, 0, 0]:
                fits = int(np.count_nonzero(s.v[p, :, 0]))
                scores_crk = self._scores(s, p, t, "train")
                whole[p], parts[p] = (scores_crk[0], fits), (scores_crk[1:], fits)
        s = s.trained(engine.fit(s.x, s.buffers, s.opt_state, batches, begun=whole))
        trees[:, t, 0] = s.x
        for p in fitting:
            if self._held_out(p)[0] == "train":
                of_p = engine.data, p, int(engine.peers[p]), s.x[p]
                x_fd = engine.library.without_folds(*of_p, parts[p])
                trees[p, t, 1 : 1 + len(x_fd)] = x_fd
        return replace(s, trees=trees), {"x": s.x}

    def update(self, s: BoostingState, inbox: Inbox) -> BoostingState:
        t, trees, v, b = inbox.round, s.trees.clone(), s.v.copy(), s.b.copy()
        used_pm = np.zeros((len(v), v.shape[2]), dtype=np.bool_)
        used_pm[:, 0] = True
        if len(inbox):
            rows, m = inbox.peer, self.near.cumsum(axis=1)[inbox.peer, inbox.senders]
            trees[rows, t, FOLDS + m], used_pm[rows, m] = inbox.offers.each("x"), True
        s = replace(s, trees=trees, low=s.low.copy(), high=s.high.copy())
        for p, used_m in enumerate(used_pm):
            v_m, b_k = self._step(s, p, t, np.flatnonzero(used_m))
            if v_m.any():
                v[p, 0, 0], v[p, t, used_m] = 0, v_m
                b[p] += b_k
        trees[:, t, :_CHAINS][v[:, t, 0] == 0] = 0.0
        trees[:, t, _CHAINS:][v[:, t, 1:] == 0] = 0.0
        return replace(s, trees=trees, v=v, b=b)

    def _step(self, s: BoostingState, p: int, t: int, used: Ints) -> tuple[Floats, Floats]:
        """Return the coefficients (m,) of the members `used`, and the offsets (k,); set limits."""
        engine, (split, count) = self.engine, self._held_out(p)
        chain_r = np.zeros(count, dtype=np.int64)
        if split == "train" and count:
            assert engine.library is not None
            chain_r = 1 + engine.library.folds(engine.data, p, int(engine.peers[p]))
        at = chain_r, np.arange(count)
        base_rk = self._scores(s, p, t, split)[at]
        outputs_ark = self._outputs(s.trees[p, t], p, split)
        outputs_mrk = outputs_ark[FOLDS:]
        outputs_mrk[0] = outputs_ark[at]  # by the peer's own trees of each row's chain
        s.low[p, t], s.high[p, t] = engine.task.ranges(outputs_mrk[1:])
        outputs_mrk = outputs_mrk[used]
        targets_r = engine.data.shards[split].targets_pn[p, :count].cpu()
        v_m, b_k = np.eye(len(used))[0], np.zeros(engine.outputs)
        if count and len(used) > 1:
            of_own = partial(scale, engine)
            v_m, b_k = engine.ridge(outputs_mrk, targets_r, self.ridge, of_own, base_rk)
        if s.v[p, 0, 0]:
            return v_m, b_k
        taken = np.flatnonzero(v_m)  # others may be infinite
        added_mrk = base_rk.new_tensor(v_m[taken])[:, None, None] * outputs_mrk[taken]
        after_rk = base_rk + added_mrk.sum(dim=0) + base_rk.new_tensor(b_k)
        before, after = (
            float(engine.task.losses(scores_rk[None], targets_r[None]).sum())
            for scores_rk in (base_rk, after_rk)
        )
        return (v_m, b_k) if after <= before else (0 * v_m, 0 * b_k)

    def _held_out(self, p: int) -> tuple[SplitName, int]:
        """Return the split with a peer's held-out rows, and their number."""
        shards = self.engine.data.shards
        count = int(shards["validation"].lengths_p[p])
        return ("validation", count) if count else ("train", int(shards["train"].lengths_p[p]))

    def _scores(self, s: BoostingState, p: int, t: int, split: SplitName) -> Tensor:
        """Return the scores of a peer's rows before round `t` by each chain, (c, r, k)."""
        outputs = self._outputs(s.trees[p, :t].flatten(0, 1), p, split).unflatten(0, (t, -1))
        v_tm11 = outputs.new_tensor(s.v[p, :t])[..., None, None]
        own_crk = (v_tm11[:, :1] * outputs[:, :_CHAINS]).sum(dim=0)
        at = (outputs.new_tensor(each[p, :t])[:, :, None] for each in (s.low, s.high))
        others = self.engine.task.clipped(outputs[:, _CHAINS:], *at)
        others_rk = (v_tm11[:, 1:] * others).sum(dim=(0, 1))
        scores_crk: Tensor = own_crk + others_rk + outputs.new_tensor(s.b[p])
        return scores_crk

    def _outputs(self, x_ad: Tensor, p: int, split: SplitName) -> Tensor:
        """Return the outputs of trees for a peer's rows, (a, r, k)."""
        count = int(self.engine.data.shards[split].lengths_p[p])
        outputs = self.engine.example_outputs(x_ad, {}, split, np.full(len(x_ad), p))[:, :count]
        return outputs.reshape(len(x_ad), count, self.engine.outputs).cpu().double()

    def mixture(self, s: BoostingState) -> Mixture:
        used = 1 + int(np.flatnonzero(s.v.any(axis=(0, 2))).max())
        members = np.r_[0, _CHAINS : s.trees.shape[2]]
        models = s.trees[:, :used, members].flatten(1, 2)
        authors_pm = np.zeros((len(s.v), len(members)), dtype=np.int64)
        authors_pm[:, 0] = self.engine.peers
        for p, near_n in enumerate(self.near):
            authors_pm[p, 1 : 1 + near_n.sum()] = np.flatnonzero(near_n)
        free = np.full((len(s.v), used, 1, self.engine.outputs), np.inf)
        v_pm, low_pmk, high_pmk = (
            self.engine.tensor(each).flatten(1, 2)
            for each in (
                s.v[:, :used],
                np.concatenate([-free, s.low[:, :used]], axis=2),
                np.concatenate([free, s.high[:, :used]], axis=2),
            )
        )
        offset, all_pm = self.engine.tensor(s.b), np.tile(authors_pm, used)
        return Mixture(v_pm, models, {}, offset, low_pmk, high_pmk, all_pm)

    def weights(self, s: BoostingState) -> Floats:
        size_pm, w_pn = np.abs(s.v).sum(axis=1), self.eye()
        for p, near_n in enumerate(self.near):
            w_pn[p] *= size_pm[p, 0]
            w_pn[p, near_n] = size_pm[p, 1 : 1 + near_n.sum()]
        return np.asarray(w_pn / w_pn.sum(axis=1, keepdims=True))
