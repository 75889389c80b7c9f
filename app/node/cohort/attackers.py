"""Attackers: hosted peers that send false letters; kinds in `coterie.clients.attack.ATTACKS`.

Letters are replaced when they leave the cohort, based on the letters that the attacker received, so
the result does not depend on the node of the attacker. Only the large tensors of a letter, models
and gradients, are replaced; small ones (IFCA's choice, variances) stay honest. The attacker's rule
reads the false letter too. Legend: k = received letters, s = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.filters import LetterFilter, Tensors, Update
from coterie.app.node.cohort.members import Part
from coterie.clients.attack import Attack, Knowledge
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Ints, Letters, no_letters
from coterie.strategies.protocol import Report

Made = Callable[[], Tensor]
Lie = Callable[[str, int], Tensor]
"""(name of a tensor, row) -> the false row."""


class Attackers(LetterFilter):
    """Attackers of a run that a node hosts: the peers `ids`."""

    def __init__(self, attack: Attack, ids: Ints, engine: Engine) -> None:
        self._kind, self._strength = attack.row, attack.power
        self._ids, self._engine = ids, engine
        self.restart()

    def send(self, letters: Letters, t: int) -> Letters:
        """Replace the largest tensors of the attackers' letters by lies."""
        rows = np.flatnonzero(np.isin(letters.authors, self._ids))
        floating = [value for value in letters.tensors.values() if value.is_floating_point()]
        if self._kind.forge is None or not len(rows) or not floating:
            return letters
        lie = self._offer(letters, t) if letters.kind == "offer" else self._answer(letters, t)
        tensors = dict(letters.tensors)
        largest = max(value[0].numel() for value in floating)
        for name, value in letters.tensors.items():
            if value.is_floating_point() and value[0].numel() == largest:
                tensors[name] = value.clone()
                for row in rows.tolist():
                    tensors[name][row] = lie(name, row)
        return replace(letters, tensors=tensors)

    def _offer(self, offers: Letters, t: int) -> Lie:
        """Return the lie in place of an offer: it follows from the honest models of last round."""
        received = self._received if self._received_in == t - 1 else no_letters()
        honest = ~np.isin(received.senders, self._ids)

        def lie(name: str, row: int) -> Tensor:
            own, peer = offers[name][row], int(offers.authors[row])
            rows = received.rows[honest & (received.recipients == peer)]
            known_kd = received[name][rows] if name in received.tensors else own[None][:0]
            reference = known_kd.mean(dim=0) if len(known_kd) else own
            return self._forged(own, known_kd, reference, self._noise(t, peer, 0, own))

        return lie

    def _answer(self, answers: Letters, t: int) -> Lie:
        """Return the lie in place of an answer: it follows from the answers to all peers."""

        def lie(name: str, e: int) -> Tensor:
            own, answerer = answers[name][e], int(answers.senders[e])
            known_kd = answers[name][np.flatnonzero(answers.senders == answerer)]
            noise = self._noise(t, answerer, int(answers.recipients[e]) + 1, own)
            return self._forged(own, known_kd, torch.zeros_like(own), noise)

        return lie

    def visible(self, inbox: Inbox) -> Inbox:
        """Keep the models of the round for the next lies."""
        self._received_in, self._received = inbox.round, inbox.offers
        return inbox

    def update(self, compute: Update, part: Part, inbox: Inbox) -> Any:
        """Some attackers ignore what they receive."""
        if self._kind.listens:
            return compute(part, inbox)
        offers, answers = (
            letters.select(~np.isin(letters.recipients, self._ids))
            for letters in (inbox.offers, inbox.answers)
        )
        return compute(part, replace(inbox, offers=offers, answers=answers))

    def report(self, report: Report) -> Report:
        if report.peer not in self._ids:
            return report
        return replace(report, metrics={**report.metrics, "attacker": 1})

    def restore(self, tensors: Tensors) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the last round; every lie of a round is made before the round is saved."""
        self._received_in, self._received = 0, no_letters()

    def _forged(self, own: Tensor, known_kd: Tensor, reference: Tensor, noise: Made) -> Tensor:
        assert self._kind.forge is not None
        return self._kind.forge(Knowledge(own, known_kd, reference, self._strength, noise))

    def _noise(self, t: int, peer: int, partner: int, like: Tensor) -> Made:
        g = stream(self._engine.seed, peer, t, Purpose.ATTACK, partner)
        return lambda: self._engine.tensor(g.standard_normal(tuple(like.shape))).to(like.dtype)
