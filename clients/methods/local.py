"""Local: every peer learns alone, the yardstick of every method.

x_i <- x_i - eta g_i(x_i), `local-steps` times a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.clients.letters import Letters
from coterie.clients.rule import Rule, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Local training has no options."""


class Local(Rule[State]):
    """SGD on own data; nothing is sent and nothing received."""

    def offer(self, state: State, round_: int) -> tuple[State, Mapping[str, Tensor]]:
        return state, {}

    def update(
        self, state: State, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> State:
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, self.engine.batches(round_))
        return state.trained(fit)
