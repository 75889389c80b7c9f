"""Letter filters: what happens to letters between the rule of hosted peers and all other peers.

A cohort has a list of filters. Letters leave through them in order (`send`), and arrive through
them in the same order (`receive`, `visible`). The first filter is the outermost around a rule
(`answer`, `update`), the last one is the wire (`coterie.app.node.cohort.wire`). A filter that keeps
something about its peers between rounds says what (`saved`), so that a resumed run is the same to
the byte.
Legend: e = letters, s = rows of a stack, P = hosted peers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import on
from coterie.app.node.cohort.members import Part
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.library import Library
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Bools, Floats, Letters
from coterie.strategies.protocol import Report

_log = logging.getLogger("coterie.letters")
Tensors = Mapping[str, Tensor]
Answer = Callable[[Part, Letters], tuple[Any, Tensors]]
"""Computes the next state of a part, and its answers to letters, (E, ...)."""
Update = Callable[[Part, Inbox], Any]
"""Computes the state of a part at the end of a round."""


class LetterFilter:
    """Filter that lets everything pass; a subclass overrides what it changes."""

    def send(self, letters: Letters, t: int) -> Letters:
        """Return the offers (no edges, a row per author) or answers that leave in round `t`."""
        return letters

    def receive(self, letters: Letters, t: int) -> Letters:
        """Return the offers or answers that are let in; the others count as refused."""
        return letters

    def visible(self, inbox: Inbox) -> Inbox:
        """Return the letters from which peers learn; the others may have been answered before."""
        return inbox

    def answer(self, compute: Answer, part: Part, letters: Letters) -> tuple[Any, Tensors]:
        """Return the next state and the answers; `compute` is the rule behind the next filters."""
        return compute(part, letters)

    def update(self, compute: Update, part: Part, inbox: Inbox) -> Any:
        """Return the next state; `compute` is the rule behind the next filters."""
        return compute(part, inbox)

    def report(self, report: Report) -> Report:
        """Return a report as it leaves."""
        return report

    def saved(self) -> dict[str, Tensor]:
        """Return what the filter keeps between rounds: named tensors, (P, ...)."""
        return {}

    def restore(self, tensors: Tensors) -> None:
        """Continue from the tensors of `saved`, which are among others; forget all else."""

    def restart(self) -> None:
        """Reset to the state before round 1."""


class LetterFilters(LetterFilter):
    """Several filters as one."""

    def __init__(self, filters: Sequence[LetterFilter]) -> None:
        self._filters = tuple(filters)

    def send(self, letters: Letters, t: int) -> Letters:
        return reduce(lambda passed, filter_: filter_.send(passed, t), self._filters, letters)

    def receive(self, letters: Letters, t: int) -> Letters:
        return reduce(lambda passed, filter_: filter_.receive(passed, t), self._filters, letters)

    def visible(self, inbox: Inbox) -> Inbox:
        return reduce(lambda passed, filter_: filter_.visible(passed), self._filters, inbox)

    def answer(self, compute: Answer, part: Part, letters: Letters) -> tuple[Any, Tensors]:
        for filter_ in reversed(self._filters):
            compute = partial(filter_.answer, compute)
        return compute(part, letters)

    def update(self, compute: Update, part: Part, inbox: Inbox) -> Any:
        for filter_ in reversed(self._filters):
            compute = partial(filter_.update, compute)
        return compute(part, inbox)

    def report(self, report: Report) -> Report:
        return reduce(lambda passed, filter_: filter_.report(passed), self._filters, report)

    def saved(self) -> dict[str, Tensor]:
        return {name: value for filter_ in self._filters for name, value in filter_.saved().items()}

    def restore(self, tensors: Tensors) -> None:
        for filter_ in self._filters:
            filter_.restore(tensors)

    def restart(self) -> None:
        for filter_ in self._filters:
            filter_.restart()


class Withhold(LetterFilter):
    """Some peers receive, but no other peer learns from their letters."""

    def __init__(self, peers: Sequence[int]) -> None:
        self._peers = np.array(peers, dtype=np.int64)

    def visible(self, inbox: Inbox) -> Inbox:
        """Leave out their letters, and the answers to them, which depend on them."""
        offers, sent, answers = inbox.offers, inbox.sent, inbox.answers
        return replace(
            inbox,
            offers=offers.select(~np.isin(offers.senders, self._peers)),
            sent=sent.select(~np.isin(sent.recipients, self._peers)),
            answers=answers.select(~np.isin(answers.senders, self._peers)),
        )

    def answer(self, compute: Answer, part: Part, letters: Letters) -> tuple[Any, Tensors]:
        """Answer their letters separately, without a trace in the next state."""
        aside = np.isin(letters.senders, self._peers)
        if not aside.any():
            return compute(part, letters)
        state, answers = part.state, dict[str, Tensor]()
        for mask in (aside, ~aside):
            if not mask.any():
                continue
            after, tensors = compute(part, letters.select(mask))
            if mask is not aside:
                state = after
            for name, value in tensors.items():
                shape = len(letters), *value.shape[1:]
                rows = on(np.flatnonzero(mask), value.device)
                answers.setdefault(name, value.new_empty(shape))[rows] = value
        return state, answers


class Budget(LetterFilter):
    """A peer that has used up its privacy budget answers no more; saves what each has spent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, letters: Letters, t: int) -> Letters:
        guard = self._engine.guard
        if letters.kind == "offer" or guard is None or not guard.exhausted.any():
            return letters
        paid = ~guard.exhausted[np.searchsorted(self._engine.peers, letters.senders)]
        at = torch.from_numpy(paid)  # answers have a row each
        tensors = {name: value[at] for name, value in letters.tensors.items()}
        rows, authors = np.arange(paid.sum()), letters.authors[paid]
        return replace(letters.select(paid), rows=rows, authors=authors, tensors=tensors)

    def saved(self) -> dict[str, Tensor]:
        return {"privacy.spent": torch.from_numpy(self._engine.spent)}

    def restore(self, tensors: Tensors) -> None:
        self._engine.spent[:] = tensors["privacy.spent"].numpy()

    def restart(self) -> None:
        self._engine.spent[:] = 0


_MODELS, _ANSWERS, _OWN = 3.0, 10.0, 1000.0  # norms above these multiples are implausible
_SPREADS = 6.0
_ENOUGH = 3  # minimum number of norms: a single outlier is not the median


class SizeCheck(LetterFilter):
    """Refuse implausibly large models and answers.

    A recipient compares the norms of letters received in a round with their median m and spread s,
    the median of |log(norm / m)|. It refuses models above 3 m exp(6 s), and answers above
    10 m exp(6 s), because honest gradients differ more: that of a converged peer is small. The
    recipient's own model counts as one of the models. With fewer than three norms there is no
    median to trust, and only a model with 1000 times the norm of the recipient's is refused.
    """

    def receive(self, letters: Letters, t: int) -> Letters:
        large_e = oversized(letters)
        return letters.select(~large_e) if large_e.any() else letters


class WellFormed(LetterFilter):
    """Refuse models that their library cannot have fitted, such as trees with a cycle."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def receive(self, letters: Letters, t: int) -> Letters:
        if letters.kind != "offer" or not len(letters):
            return letters
        wrong_e = self._library.malformed(letters["x"])[letters.rows]
        for sender, peer in zip(letters.senders[wrong_e], letters.recipients[wrong_e], strict=True):
            _log.warning(
                "peer=%d refused the model of peer %d: it is not well formed", peer, sender
            )
        return letters.select(~wrong_e) if wrong_e.any() else letters


def oversized(letters: Letters) -> Bools:
    """Mark letters that are far larger than the others that their recipient has, (E,)."""
    size_s, is_offer = _norms(letters), letters.kind == "offer"
    size_e = size_s[letters.rows]
    large_e = np.zeros(len(letters), dtype=np.bool_)
    for peer in np.unique(letters.recipients):
        mine = letters.recipients == peer
        own = size_s[letters.authors == peer] if is_offer else size_s[:0]
        known = np.concatenate([own, size_e[mine]])
        if len(known) >= _ENOUGH:
            large_e[mine] = size_e[mine] > limit(known, _MODELS if is_offer else _ANSWERS)
        elif own.any():
            large_e[mine] = size_e[mine] > _OWN * own[0]
    return large_e


def limit(sizes_k: Floats, times: float) -> float:
    """Return `times` m exp(6 s) with median m and spread s of some norms; infinity if m is 0."""
    # Of an even number of norms, m is the lower median and s the upper one: if half of the peers
    # have converged, the others are not refused.
    median = np.sort(sizes_k)[(len(sizes_k) - 1) // 2]
    if median == 0:
        return np.inf
    apart_k = np.abs(np.log(sizes_k[sizes_k > 0] / median))
    spread = np.sort(apart_k)[len(apart_k) // 2]
    with np.errstate(over="ignore"):
        return float(times * median * np.exp(_SPREADS * spread))


def _norms(letters: Letters) -> Floats:
    """Return the Euclidean norms of rows over all floating-point tensors, (S,)."""
    squares_s = np.zeros(len(letters.authors))
    for value in letters.tensors.values():
        if value.is_floating_point() and value.numel():
            norm_s = torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1)
            squares_s += norm_s.double().cpu().numpy() ** 2
    norms: Floats = np.sqrt(squares_s)
    return norms
