"""The peers of one node and one round of theirs: begin, receive, answer, update, evaluate.

Letters between peers of the node and letters from elsewhere become one stack, so a rule never
knows who hosts whom. Legend: p = peers of this node, e = letters, s = rows of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.wire.payload import layout_of, nbytes
from app.wire.quantise import Layout, Precision, rounded
from clients.engine.data import SplitName
from clients.engine.engine import Engine
from clients.letters import Ints, Letters
from clients.rule import Rule
from strategies.protocol import Edges, Report

Foreign = Mapping[tuple[int, int], Mapping[str, Tensor]]
"""Tensors from other nodes by (sender, recipient); an offer's recipient is -1."""


@dataclass
class Costs:
    """What each hosted peer has paid so far, (P,) each.

    Attributes
    ----------
    sent, received : payload bytes, wherever the other peer is hosted.
    n_gradients : examples differentiated; the engine counts them.
    """

    sent: Ints
    received: Ints
    n_gradients: Ints


class Cohort:
    """All peers of a node under one rule.

    Attributes
    ----------
    state : what the rule keeps.
    offers : name -> (P, ...), what the peers show in the round that has begun.
    received, sent : models received and answers given in this round.
    """

    def __init__(
        self, engine: Engine, rule: Rule[Any], rounds: int, precision: Precision = "full"
    ) -> None:
        self.engine, self.rule, self.rounds = engine, rule, rounds
        self.precision: Precision = precision
        self.peers = engine.peers
        self._hosted = np.zeros(engine.n, dtype=np.bool_)
        self._hosted[self.peers] = True
        self.restart()

    def restart(self) -> None:
        """Forget everything and stand before round 1."""
        self.state = self.rule.init()
        self.offers: Mapping[str, Tensor] = {}
        self.received = self.sent = no_letters()
        none = np.zeros_like(self.peers)
        self.engine.n_gradients[:] = 0
        self.costs = Costs(none, none.copy(), self.engine.n_gradients)

    def begin(self, t: int) -> None:
        """Write the offers of round `t`, unless the run is over."""
        self.offers = {}
        if t <= self.rounds:
            self.state, offers = self.rule.offer(self.state, t)
            self.offers = rounded(offers, self.precision)

    def receive(self, edges: Edges, foreign: Foreign) -> None:
        """Put the round's offers together; an edge whose letter is missing is left out."""
        authors = np.array(sorted({*self.peers.tolist(), *(k for k, _ in foreign)}), dtype=np.int64)
        stack = dict(self.offers)
        if foreign:
            rows = torch.from_numpy(np.searchsorted(authors, self.peers))
            for name, own in self.offers.items():
                stack[name] = own.new_empty((len(authors), *own.shape[1:]))
                stack[name][rows.to(own.device)] = own
                for (k, _), tensors in foreign.items():
                    stack[name][int(np.searchsorted(authors, k))] = tensors[name].to(own.device)
        layout = layout_of(self.offers)
        self._count_bytes(self.costs.sent, edges[self._hosted[edges[:, 0]], 0], layout)
        wrote = np.zeros_like(self._hosted)
        wrote[authors] = True
        came = edges[self._hosted[edges[:, 1]] & wrote[edges[:, 0]]]
        self._count_bytes(self.costs.received, came[:, 1], layout)
        rows_e = np.searchsorted(authors, came[:, 0])
        self.received, self.sent = (
            Letters(came[:, 0], came[:, 1], rows_e, authors, stack),
            no_letters(),
        )

    def answer(self, t: int, asked: Edges) -> None:
        """Answer those of the received offers whose edge is asked."""
        wanted = np.zeros((self.engine.n, self.engine.n), dtype=np.bool_)
        wanted[asked[:, 0], asked[:, 1]] = True
        letters = self.received.select(wanted[self.received.senders, self.received.recipients])
        if not len(letters):
            return
        self.state, tensors = self.rule.answer(self.state, t, letters)
        tensors = rounded(tensors, self.precision)
        rows = np.arange(len(letters))
        self.sent = Letters(letters.recipients, letters.senders, rows, letters.recipients, tensors)
        self._count_bytes(self.costs.sent, letters.recipients, self.answer_layout(t))

    def update(self, t: int, foreign: Foreign) -> None:
        """End round `t` with the answers of this node's peers and those from elsewhere."""
        inside = np.flatnonzero(self._hosted[self.sent.recipients])
        # Where every answer stays on the node, theirs is the stack itself and not a copy.
        at = inside if len(inside) < len(self.sent) else slice(None)
        ends = np.concatenate(
            [
                np.stack([self.sent.senders[inside], self.sent.recipients[inside]], axis=1),
                np.array(list(foreign), dtype=np.int64).reshape(-1, 2),
            ]
        )
        order = np.lexsort((ends[:, 0], ends[:, 1]))
        answers = no_letters()
        if len(ends):
            stack = {}
            for name in self.answer_layout(t):
                parts = [self.sent[name][at]] if len(inside) else []
                parts += [t_[name].to(self.engine.device)[None] for t_ in foreign.values()]
                stack[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
            senders, recipients = ends[order].T
            answers = Letters(senders, recipients, order, ends[:, 0], stack)
        self._count_bytes(self.costs.received, answers.recipients, self.answer_layout(t))
        self.state = self.rule.update(self.state, t, self.received, self.sent, answers)

    def answer_layout(self, t: int) -> Layout:
        """Shape and type of each tensor in one answer of round `t`."""
        return {k: (s, self.engine.dtype) for k, s in self.rule.answer_shapes(t).items()}

    def evaluate(self, t: int) -> tuple[Report, ...]:
        """Measure every personal model on its peer's own data.

        The costs is that of a run that ends here: what making the personal models costs is on it
        but is not carried over, so it does not depend on how often one measures.
        """
        splits: tuple[SplitName, ...] = ("test", "validation", "train")
        columns: dict[str, list[Any]] = {}
        n_gradients = self.costs.n_gradients.copy()
        personal = self.rule.personal(self.state)
        for split in splits:
            losses, accuracies = self.rule.evaluate(personal, split)
            columns[f"{split}_loss"] = losses.tolist()
            columns[f"{split}_accuracy"] = accuracies.tolist()
        columns["bytes_sent"] = self.costs.sent.tolist()
        columns["bytes_received"] = self.costs.received.tolist()
        columns["gradient_evaluations"] = self.costs.n_gradients.tolist()
        self.costs.n_gradients[:] = n_gradients
        columns |= {name: value.tolist() for name, value in self.rule.metrics(self.state).items()}
        weights = self.rule.weights(self.state)
        return tuple(
            Report(
                t,
                int(peer),
                {k: v[p] if math.isfinite(v[p]) else None for k, v in columns.items()},
                tuple(weights[p].tolist()),
            )
            for p, peer in enumerate(self.peers)
        )

    def models(self) -> dict[int, dict[str, Tensor]]:
        """Each peer's personal model, as named parameters and buffers."""
        state = self.rule.personal(self.state)
        named = self.engine.network.named(state.x) | state.buffers
        return {
            int(peer): {name: value[p] for name, value in named.items()}
            for p, peer in enumerate(self.peers)
        }

    def _count_bytes(self, account: Ints, peers: Ints, layout: Layout) -> None:
        np.add.at(account, np.searchsorted(self.peers, peers), nbytes(layout, self.precision))


def no_letters() -> Letters:
    """Nothing came."""
    none: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    return Letters(none, none, none, none, {})
