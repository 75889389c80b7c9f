"""Pooled: one model trained on the examples of all peers, what pooling the data would give.

x <- x - eta g(x), where g is the gradient on minibatches drawn from the examples of all peers; each
peer evaluates x on its own data. The loss of a problem without examples is sum_i p_i f_i, p_i
proportional to n_i. A reference: only a simulation has the data of all peers in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.clients.letters import Letters
from coterie.clients.methods.local import Local
from coterie.clients.rule import State


@dataclass(frozen=True)
class Options:
    """Options of pooled training: none."""


class Pooled(Local):
    """Training on the examples of all peers; peers send and receive nothing."""

    pools: ClassVar[bool] = True

    def update(
        self, state: State, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> State:
        return state.trained(
            self.engine.fit_pooled(state.x, state.buffers, state.opt_state, round_)
        )
