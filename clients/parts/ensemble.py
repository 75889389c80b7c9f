"""Collaboration through predictions: methods that combine the outputs of whole models.

A peer keeps its neighbours' trained models, and chooses how to combine their predictions with its
own by rows that its own model was not trained on: validation rows, or, for models that a library
fits, training rows with its own model's predictions out of fold (else it looks too good).

Legend: p = peers of this node, n = all peers, k = slots, one for each neighbour in order or for the
largest weights, m = a peer's members (its own model first), r = held-out rows, e = letters,
d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from coterie.clients.hints import Bools, Engine, Floats, Ints, SplitName, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.mixture import Mixture
from coterie.clients.rule import Rule, State
from coterie.strategies.plans import Wanted

EMPTY = -1
"""Author of an empty slot."""
_NEGLIGIBLE = 1e-12  # members of at most this weight are not evaluated


def place(
    authors_pk: Ints, w_pn: Floats, peer_e: Ints, senders_e: Ints
) -> dict[tuple[int, int], int]:
    """Assign received models to slots, (peer, slot) -> letter, and update `authors_pk`.

    A model replaces the older one of its author, else fills an empty slot, else replaces the model
    of the smallest weight if its own is larger.
    """
    placed: dict[tuple[int, int], int] = {}
    for e, (p, author) in enumerate(zip(peer_e.tolist(), senders_e.tolist(), strict=True)):
        w_k = np.where(authors_pk[p] == EMPTY, -1.0, w_pn[p, authors_pk[p]])
        w_k[authors_pk[p] == author] = -2.0
        slot = int(w_k.argmin())
        if w_k[slot] < w_pn[p, author]:
            authors_pk[p, slot] = author
            placed[p, slot] = e
    return placed


def known(authors_pk: Ints, peers: Ints, n: int) -> Bools:
    """Return a mask (P, n) of the models that each peer stores, its own included."""
    mask_pn = np.zeros((len(peers), n), dtype=np.bool_)
    mask_pn[np.arange(len(peers)), peers] = True
    p, k = np.nonzero(authors_pk != EMPTY)
    mask_pn[p, authors_pk[p, k]] = True
    return mask_pn


def mixture(
    x_pd: Tensor, members_pkd: Tensor, authors_pk: Ints, w_pn: Floats, peers: Ints
) -> tuple[Floats, Tensor, Ints]:
    """Return weights (P, M), models (P, M, d) and slots (P, M) of each mixture, by weight.

    The weights `w_pn` must be 0 for models that a peer does not store.
    """
    rows_p1 = np.arange(len(peers))[:, None]
    all_pm = np.concatenate([peers[:, None], authors_pk], axis=1)
    w_pm = np.where(all_pm == EMPTY, 0.0, w_pn[rows_p1, all_pm])
    w_pm[w_pm <= _NEGLIGIBLE] = 0.0  # same result for any assignment of peers to nodes
    order_pm = np.argsort(-w_pm, axis=1, kind="stable")
    used = int((w_pm > 0).sum(axis=1).max())
    at = rows_p1, order_pm[:, :used]
    x_pmd = x_pd.new_empty((*w_pm.shape, x_pd.shape[1]))
    x_pmd[:, 0], x_pmd[:, 1:] = x_pd, members_pkd
    chosen_pmd = x_pmd[at]
    chosen_pmd[w_pm[at] == 0] = 0.0  # an unused model may be nan, and 0 x nan is nan
    return w_pm[at], chosen_pmd, at[1]


@dataclass(frozen=True)
class MembersState(State):
    """State with the models of others."""

    members: Tensor  # models of the neighbours, (P, K, d)
    authors: Ints  # owners of these models, (P, K); -1 for a model that has not arrived
    w: Floats  # weights of the models, (P, n); rows sum to 1
    low: Floats  # limits of the scores of models in slots, see `bounds`, (P, K, k) or (P, K, 1)
    high: Floats


S = TypeVar("S", bound=MembersState)


@dataclass(frozen=True)
class HeldOut:
    """Members of a peer, and the rows that choose their weights."""

    rule: Predictors[Any]
    state: MembersState
    peer: int
    slots: Ints  # slots of the members beside the peer's own model

    @property
    def authors(self) -> Ints:
        """Peers whose models are the members, (m,)."""
        hosted = self.rule.engine.peers[[self.peer]]
        return np.concatenate([hosted, self.state.authors[self.peer, self.slots]])

    @property
    def _split(self) -> tuple[SplitName, int]:
        shards = self.rule.engine.data.shards
        count = int(shards["validation"].lengths_p[self.peer])
        library = self.rule.engine.library
        if count or library is None or not library.fits(self.state.x[[self.peer]])[0]:
            return "validation", count
        return "train", int(shards["train"].lengths_p[self.peer])

    def outputs(self) -> Tensor:
        """Return the outputs of the members for the held-out rows, (m, r, ...)."""
        engine, (split, count) = self.rule.engine, self._split
        at = np.full(1 + len(self.slots), self.peer)
        x_md = self.rule.stacked(self.state)[self.peer, np.append(0, 1 + self.slots)]
        buffers = self.state.buffers_at(at)
        outputs = engine.example_outputs(x_md, buffers, split, at)[:, :count]
        if split == "train" and engine.library is not None:
            name = int(engine.peers[self.peer])
            x_d = self.state.x[self.peer]
            outputs[0] = engine.library.out_of_fold(engine.data, self.peer, name, x_d)
        return outputs

    def targets(self) -> Tensor:
        """Return the targets of the held-out rows, (r, ...)."""
        split, count = self._split
        return self.rule.engine.data.shards[split].targets_pn[self.peer, :count]

    def losses(self, outputs: Tensor) -> Floats:
        """Return the losses -log p(y | x) of outputs, (m, r)."""
        # For numbers p is normal; its variance is the mean squared error of the peer's own model.
        engine, targets = self.rule.engine, self.targets()
        expanded = targets.expand(len(outputs), *targets.shape)
        losses_mr = np.asarray(engine.task.losses(outputs, expanded).double().cpu())
        losses_mr = np.nan_to_num(losses_mr, nan=WORST, posinf=WORST).clip(max=WORST)
        return np.asarray(losses_mr / scale(engine, losses_mr))


def scale(engine: Engine, losses_mr: Floats) -> float:
    """Return twice the variance of the peer's own errors in a regression, else 1."""
    if engine.kind != "regression" or not losses_mr.size:
        return 1.0
    return 2 * float(losses_mr[0].mean()) or 1.0


WORST = 1e30
"""Loss of a model whose outputs are not finite, and limit of scores that only have to be finite."""


class Predictors(Rule[S], Generic[S], strategy=Wanted, learns_graph=True, validates=True):
    """Base of the methods that combine predictions: subclasses choose the weights."""

    any_model: ClassVar[bool] = True

    @property
    def limits_scores(self) -> bool:
        """True if scores are limited to their range; bounded predictions only have to be finite."""
        return self.engine.kind == "regression"

    def models_kept(self, peers: int) -> int:
        return peers

    def init(self) -> S:
        start, degree = self.start(), int(self.engine.topology.sum(axis=1).max())
        slots = len(start.x), degree
        members = start.x.new_zeros((*slots, self.engine.d))
        wide = np.full((*slots, self.engine.outputs if self.limits_scores else 1), WORST)
        return self.begin(
            start, members=members, authors=np.full(slots, EMPTY), low=-wide, high=wide,
            **self.extra(),
        )  # fmt: skip

    def extra(self) -> Mapping[str, Floats]:
        """Return further fields of the initial state."""
        return {}

    def wants(self, s: S, t: int) -> Bools:
        """Request all neighbours' models; those that a library fits once, until they arrive."""
        if self.engine.library is None:
            return self.near
        p, k = np.nonzero(s.authors != EMPTY)
        at = self.engine.library.fits(s.members[p, k])
        p, k = p[at], k[at]
        wanted_pn = self.near.copy()
        wanted_pn[p, s.authors[p, k]] = False
        return wanted_pn

    def offer(self, s: S, t: int) -> tuple[S, Mapping[str, Tensor]]:
        s = self.fit(s, t)
        return s, {"x": s.x}

    def update(self, s: S, inbox: Inbox) -> S:
        if len(inbox):
            slot_pn = self.near.cumsum(axis=1) - 1
            authors, members = s.authors.copy(), s.members.clone()
            at = inbox.peer, slot_pn[inbox.peer, inbox.senders]
            authors[at], members[at] = inbox.senders, inbox.offers.each("x")
            s = replace(s, authors=authors, members=members)
        for p in range(len(s.x)):
            s = self.combined(s, p, HeldOut(self, s, p, np.flatnonzero(s.authors[p] != EMPTY)))
        return s

    def combined(self, s: S, p: int, held_out: HeldOut) -> S:
        """Return the state with the weights of peer `p`, chosen on its held-out rows."""
        w, outputs = s.w.copy(), held_out.outputs()
        w[p] = 0
        w[p, held_out.authors] = self.chosen(held_out.losses(outputs))
        return self.limited(replace(s, w=w), p, held_out, outputs)

    def limited(self, s: S, p: int, held_out: HeldOut, outputs: Tensor) -> S:
        """Return the state with the limits of peer `p`, from outputs (m, r, ...) that chose."""
        if not self.limits_scores or not len(held_out.slots):
            return s
        low, high = s.low.copy(), s.high.copy()
        at = p, held_out.slots
        low[at], high[at] = self.engine.task.ranges(outputs[1:])
        return replace(s, low=low, high=high)

    def chosen(self, losses_mr: Floats) -> Floats:
        """Return the weights (m,) of members by their losses on the held-out rows."""
        raise NotImplementedError

    def stacked(self, s: S) -> Tensor:
        """Return the models of each peer, its own first, (P, 1 + K, d)."""
        x_pmd = s.x.new_empty((len(s.x), 1 + s.members.shape[1], self.engine.d))
        x_pmd[:, 0], x_pmd[:, 1:] = s.x, s.members
        return x_pmd

    def mixture(self, s: S) -> Mixture | None:
        if not s.authors.shape[1]:
            return None
        w_pm, x_pmd, at_pm = mixture(s.x, s.members, s.authors, s.w, self.engine.peers)
        weights, buffers = self.engine.tensor(w_pm), s.buffers_of_members(w_pm.shape[1])
        return Mixture(weights, x_pmd, buffers, None, *self.bounds(s, at_pm))

    def bounds(self, s: S, at_pm: Ints) -> tuple[Tensor, Tensor, Ints]:
        """Return limits (P, M, k) and authors (P, M) of models at places among own and slots."""
        free, rows_p1 = np.full_like(s.low[:, :1], np.inf), np.arange(len(s.x))[:, None]
        low, high, authors_pm = (
            np.concatenate([own, of_slots], axis=1)[rows_p1, at_pm]
            for own, of_slots in (
                (-free, s.low), (free, s.high), (self.engine.peers[:, None], s.authors)
            )
        )  # fmt: skip
        return self.engine.tensor(low), self.engine.tensor(high), authors_pm
