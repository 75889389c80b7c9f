"""Inbox: the letters of a round as tables over the hosted peers and all peers.

Legend: P = hosted peers, n = all peers, E = received letters, S = models in the stack (each is
there once, the hosted peers' own ones included), d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.clients.letters import Bools, Floats, Ints, Letters, Rows, no_letters

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import SplitName
    from coterie.clients.engine.engine import Engine
    from coterie.clients.rule import State


@dataclass(frozen=True, eq=False)
class Inbox:
    """Letters of a round that the hosted peers received and sent: stacks, tables, computations."""

    engine: Engine
    round: int  # number of the round, from 1
    offers: Letters  # models that the hosted peers received; the stack also has their own
    sent: Letters = field(default_factory=no_letters)
    answers: Letters = field(default_factory=no_letters)
    """Answers that the hosted peers sent and received."""
    products: Mapping[str, Floats] = field(default_factory=dict)
    """Instead of them, their products by name (see `exchanged`), if all pairs are hosted."""

    def __len__(self) -> int:
        """Return the number E of received models."""
        return len(self.offers)

    def __getitem__(self, name: str) -> Tensor:
        """Return the stack of a tensor, (S, ...); `authors` names the peer of each row."""
        return self.offers[name]

    @property
    def authors(self) -> Ints:
        """Peer of each row of the stack, (S,)."""
        return self.offers.authors

    @property
    def senders(self) -> Ints:
        """Sender of each received letter, (E,)."""
        return self.offers.senders

    @cached_property
    def peer(self) -> Ints:
        """Hosted peer that received each letter, (E,), as a row of the tables."""
        return self._row(self.offers)

    @cached_property
    def own(self) -> Ints:
        """Row of each hosted peer's own model in the stack, (P,)."""
        return np.searchsorted(self.authors, self.engine.peers)

    @cached_property
    def heard(self) -> Bools:
        """Models that arrived, (P, n)."""
        return self.offers.senders_to(self.engine.peers, self.engine.n)

    @cached_property
    def replied(self) -> Bools:
        """Peers whose answer arrived, (P, n)."""
        return self.answers.senders_to(self.engine.peers, self.engine.n)

    @cached_property
    def present(self) -> Bools:
        """Models that each peer can average, (P, n): arrived ones, and its own unless expired."""
        expired_p = np.isin(self.engine.peers, self.offers.expired) & self.heard.any(axis=1)
        return self.heard | (self._eye & ~expired_p[:, None])

    @cached_property
    def discount(self) -> Floats:
        """Staleness discount of each peer's model, (n,): (s + 1)^-a at an age of s rounds."""
        fresh_n = np.ones(self.engine.n)
        if len(self.offers.ages):
            ages_s = np.maximum(self.offers.ages, 0)
            fresh_n[self.authors] = (ages_s + 1.0) ** -self.engine.staleness_discount
        return fresh_n

    @property
    def freshness(self) -> Floats:
        """Staleness discount of the models that arrived, (P, n); 0 for the others."""
        return np.asarray(self.heard * self.discount)

    def table(self, values_e: npt.ArrayLike, letters: Letters | None = None) -> Floats:
        """Return a value of each received model, or of each of `letters`, as (P, n); else 0."""
        letters = letters or self.offers
        values_pn = np.zeros((len(self.engine.peers), self.engine.n))
        values_pn[self._row(letters), letters.senders] = values_e
        return values_pn

    def by_peer(self, values_s: npt.ArrayLike) -> Floats:
        """Return values of the stack's rows, (..., S), as values of all peers, (..., n); else 0."""
        values_s = np.asarray(values_s)
        values_n = np.zeros((*values_s.shape[:-1], self.engine.n))
        values_n[..., self.authors] = values_s
        return values_n

    @property
    def _eye(self) -> Bools:
        return np.asarray(np.arange(self.engine.n) == self.engine.peers[:, None])

    def _row(self, letters: Letters) -> Ints:
        """Return the hosted peer that received each letter, as a row of the tables."""
        return np.searchsorted(self.engine.peers, letters.recipients)

    # ---- what rules compute from the letters -----------------------------------------------------

    def losses(self, state: State, split: SplitName, *, own: bool = False) -> Floats:
        """Return the loss of each received model on its recipient's data, (P, n); else nan.

        `state` has the running statistics of the recipients; `own` also evaluates their own models.
        """
        peer, rows = self._evaluated(own=own)
        losses_pn = np.full(self.heard.shape, np.nan)
        if len(peer):
            x_ed, buffers = self["x"][rows], state.buffers_at(peer)
            losses_e = self.engine.losses(x_ed, buffers, split, peer).losses.cpu().numpy()
            losses_pn[peer, self.authors[rows]] = losses_e
        return losses_pn

    def squared_distances(
        self, name: str, to: Tensor | None = None, *, own: bool = False
    ) -> Floats:
        """Return |x_k - y_i|^2 of the received models x_k, (P, n); 0 for the others.

        `to` has the models y_i (P, ...) of the hosted peers; None: their own in the stack. With
        `own`, x_i of each peer is included.
        """
        peer, rows = self._evaluated(own=own)
        to_e = Rows(self[name], self.own[peer]) if to is None else Rows(to, peer)
        squares_pn = np.zeros(self.heard.shape)
        squares_e = self.engine.squared_distances(Rows(self[name], rows), to_e)
        squares_pn[peer, self.authors[rows]] = squares_e.cpu()
        return squares_pn

    def exchanged(self, name: str) -> Floats:
        """Return <own answer, their answer> of pairs that answered each other, (P, n); else 0."""
        if name in self.products:
            return self.products[name]
        # Both ends of a pair compute the same number.
        sent, answers, n = self.sent, self.answers, self.engine.n
        key_sent, key_back = (
            sent.senders * n + sent.recipients,
            answers.recipients * n + answers.senders,
        )
        met = np.flatnonzero(np.isin(key_back, key_sent))
        order = np.argsort(key_sent)
        e_out = order[np.searchsorted(key_sent, key_back[met], sorter=order)]
        products_pn = np.zeros((len(self.engine.peers), n))
        if len(met):
            low_e, high_e = np.sort(answers.ends[met], axis=1).T
            _, first, pair_e = np.unique(low_e * n + high_e, return_index=True, return_inverse=True)
            products = self.engine.inner(
                Rows(answers[name], answers.rows[met[first]]),
                Rows(sent[name], sent.rows[e_out[first]]),
            ).cpu()
            products_pn[self._row(answers)[met], answers.senders[met]] = products[pair_e]
        return products_pn

    def mix(self, name: str, weights_pn: Floats | Tensor, own_pd: Tensor | None = None) -> Tensor:
        """Return sum_k w_ik x_k over the stack, (P, ...); weights of other models are ignored.

        `own_pd` are the recipients' models for a robust rule, if the stack has others.
        """
        return self.engine.mix(weights_pn[:, self.authors], self[name], own_pd)

    def average(self, name: str, weights_pn: Floats) -> Tensor:
        """Average the models that each peer received and its own, (P, ...), see `shares`."""
        own_pd = Rows(self[name], self.own)
        return self.engine.mix(self.shares(weights_pn)[:, self.authors], self[name], own_pd)

    def shares(self, weights_pn: Floats) -> Floats:
        """Return the weights (P, n) that `average` uses: rows over the models that are present.

        Weights of absent models are dropped, the others discounted by age and normalised. A peer
        with no weight left gives all weight to its own model.
        """
        weights_pn = np.where(self.present, weights_pn, 0.0)
        weights_pn = np.where(weights_pn.any(axis=1, keepdims=True), weights_pn, self._eye)
        weights_pn = self.discounted(weights_pn)
        weights_pn /= weights_pn.sum(axis=1, keepdims=True)
        return weights_pn

    def discounted(self, weights_pn: Floats) -> Floats:
        """Discount the weights of old models (see `discount`), preserving row sums."""
        fresh_pn = weights_pn * self.discount
        before_p1, after_p1 = (w.sum(axis=1, keepdims=True) for w in (weights_pn, fresh_pn))
        return np.asarray(fresh_pn * (before_p1 / np.where(after_p1 > 0, after_p1, 1.0)))

    def answered(self, name: str, weights_pn: Floats) -> Tensor:
        """Return the weighted sum of the answers that each peer received, (P, d); 0 if none."""
        rows = self._row(self.answers)
        if not len(rows):
            return self.engine.tensor(np.zeros((len(weights_pn), self.engine.d)))
        weights_e = weights_pn[rows, self.answers.senders]
        return self.engine.collect(weights_e, self.answers[name], self.answers.rows, rows)

    def _evaluated(self, *, own: bool) -> tuple[Ints, Ints]:
        """Return hosted peer and row of the stack of each received model, and of `own` models."""
        hosted = np.arange(len(self.own) * own)
        return np.append(self.peer, hosted), np.append(self.offers.rows, self.own[hosted])
