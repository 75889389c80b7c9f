"""Attackers: hosted peers that send false letters; kinds in `coterie.clients.attack.ATTACKS`.

Letters are replaced when they leave the cohort, based on the letters that the attacker received, so
the result does not depend on the node of the attacker. Only the large tensors of a letter, models
and gradients, are replaced; small ones (IFCA's choice, variances) stay honest. The attacker's rule
reads the false letter too. Legend: k = received letters, s = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clients.attack import Attack, Knowledge
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.rule import Rule
from coterie.datasets.problem import Problem
from coterie.strategies.protocol import Report

Tensors = Mapping[str, Tensor]
Made = Callable[[], Tensor]


class Attackers:
    """Attackers of a run that a node hosts.

    Parameters
    ----------
    attack : Attack
        Options of the attack.
    ids : ndarray of int
        Indices of all attackers of the run.
    rule : Rule
        Rule of the hosted peers.
    """

    def __init__(self, attack: Attack, ids: Ints, rule: Rule[Any]) -> None:
        self._kind, self._strength = attack.row, attack.power
        self._ids, self._rule = ids, rule
        self._engine: Engine = rule.engine
        self._first: Tensors | None = None

    def forging(self, peers: Ints) -> Bools:
        """Mark the peers whose letters are replaced by lies."""
        return np.isin(peers, self._ids) & (self._kind.forge is not None)

    @property
    def present(self) -> bool:
        """True if the run has attackers."""
        return len(self._ids) > 0

    def marked(self, report: Report) -> Report:
        """Return a report with a mark if its peer is an attacker."""
        if report.peer not in self._ids:
            return report
        return replace(report, metrics={**report.metrics, "attacker": 1})

    def offers(self, t: int, peers: Ints, offers: Tensors, received: Letters) -> Tensors:
        """Return the offers of hosted peers in round `t`, with those of attackers replaced.

        Parameters
        ----------
        t : int
            Round.
        peers : ndarray of int, (P,)
            Peer of each row of the offers.
        offers : Tensors
            Honest offers.
        received : Letters
            Models received in the last round.
        """
        honest = ~np.isin(received.senders, self._ids)

        def lie(name: str, row: int) -> Tensor:
            honest_offer, peer = offers[name][row], int(peers[row])
            rows = received.rows[honest & (received.recipients == peer)]
            heard_kd = received[name][rows] if name in received.tensors else honest_offer[None][:0]
            reference = heard_kd.mean(dim=0) if len(heard_kd) else honest_offer
            noise, local = (
                self._noise(t, peer, 0, honest_offer),
                int(np.searchsorted(self._engine.peers, peers[row])),
            )
            return self._forged(
                honest_offer, heard_kd, reference, noise, lambda: self._first_offers()[name][local]
            )

        return self._replaced(offers, np.flatnonzero(np.isin(peers, self._ids)), lie)

    def answers(self, t: int, asked: Letters, answers: Tensors) -> Tensors:
        """Return the answers of hosted peers, a row per letter, with attackers' replaced."""
        attacking = np.isin(asked.recipients, self._ids)
        first = cache(lambda: self._first_answers(asked))

        def lie(name: str, e: int) -> Tensor:
            honest_answer, answerer = answers[name][e], int(asked.recipients[e])
            known_kd = answers[name][np.flatnonzero(asked.recipients == answerer)]
            noise = self._noise(t, answerer, int(asked.senders[e]) + 1, honest_answer)
            return self._forged(
                honest_answer,
                known_kd,
                torch.zeros_like(honest_answer),
                noise,
                lambda: first()[name][e],
            )

        return self._replaced(answers, np.flatnonzero(attacking), lie)

    def heard(self, letters: Letters) -> Letters:
        """Return the letters from which rules learn: some attackers ignore what they receive."""
        if self._kind.listens:
            return letters
        return letters.select(~np.isin(letters.recipients, self._ids))

    def _replaced(self, stacks: Tensors, rows: Ints, lie: Callable[[str, int], Tensor]) -> Tensors:
        """Return the stacks with some rows of the largest tensors replaced by lies."""
        if self._kind.forge is None or not len(rows) or not stacks:
            return stacks
        floating = (value for value in stacks.values() if value.is_floating_point())
        largest = max((value[0].numel() for value in floating), default=0)
        changed = dict(stacks)
        for name, value in stacks.items():
            if value.is_floating_point() and value[0].numel() == largest:
                changed[name] = value.clone()
                for row in rows.tolist():
                    changed[name][row] = lie(name, row)
        return changed

    def _forged(
        self, own: Tensor, known_kd: Tensor, reference: Tensor, noise: Made, first: Made
    ) -> Tensor:
        assert self._kind.forge is not None
        return self._kind.forge(Knowledge(own, known_kd, reference, self._strength, noise, first))

    def _noise(self, t: int, peer: int, partner: int, like: Tensor) -> Made:
        g = stream(self._engine.seed, peer, t, Purpose.ATTACK, partner)
        return lambda: self._engine.tensor(g.standard_normal(tuple(like.shape))).to(like.dtype)

    def _first_offers(self) -> Tensors:
        """Return the offers of every hosted peer in round 1, computed once per process."""
        if self._first is None:
            self._first = self._aside(lambda: self._rule.offer(self._rule.init(), 1)[1])
        return self._first

    def _first_answers(self, asked: Letters) -> Tensors:
        """Return the answer of every hosted peer to its own first offer, as of round 1."""
        peers, local = self._engine.peers, np.searchsorted(self._engine.peers, asked.recipients)
        to_itself = replace(asked, rows=local, authors=peers, tensors=self._first_offers())
        inbox, rule = self._rule.inbox(1, to_itself), self._rule
        return self._aside(lambda: rule.answer(rule.receive(rule.init(), inbox), inbox))

    def _aside(self, made: Callable[[], Tensors]) -> Tensors:
        """Compute tensors without counting the cost, which round 1 has counted."""
        spent = self._engine.n_gradients.copy()
        tensors = made()
        self._engine.n_gradients[:] = spent
        return tensors


def deceived(problem: Problem, attack: Attack, ids: Ints) -> Problem:
    """Return the problem with flipped labels or false example counts of the attackers."""
    data = attack.row.data
    return problem if data is None else data(problem, ids, attack.power)
