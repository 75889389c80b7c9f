"""Local: every peer trains alone, the baseline of all methods.

x_i <- x_i - eta g_i(x_i), `local-steps` times per round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from coterie.clients.hints import Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.rule import Rule, State
from coterie.strategies.silent import Silent


class Local(Rule[State], strategy=Silent, group="references"):
    """Every peer trains alone."""

    any_model: ClassVar[bool] = True
    offers_model = False

    def offer(self, s: State, t: int) -> tuple[State, Mapping[str, Tensor]]:
        return s, {}

    def update(self, s: State, inbox: Inbox) -> State:
        return self.fit(s, inbox.round)
