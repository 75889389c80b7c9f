"""Local: every peer trains alone, the baseline of all methods.

x_i <- x_i - eta g_i(x_i), `local-steps` times per round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coterie.clients.letters import Letters
from coterie.clients.rule import Rule, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Options of local training: none."""


class Local(Rule[State]):
    """Local training only; peers send and receive nothing."""

    offers_model: ClassVar[bool] = False

    def offer(self, state: State, round_: int) -> tuple[State, Mapping[str, Tensor]]:
        return state, {}

    def update(
        self, state: State, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> State:
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, self.engine.batches(round_))
        return state.trained(fit)
