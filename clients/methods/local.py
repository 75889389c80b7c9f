"""Local: every peer trains alone, the baseline of all methods.

x_i <- x_i - eta g_i(x_i), `local-steps` times per round.

Pooled: one model trained on the examples of all peers, what pooling the data would give.

x <- x - eta g(x), where g is the gradient on minibatches drawn from the examples of all peers; each
peer evaluates x on its own data. The loss of a problem without examples is sum_i p_i f_i, p_i
proportional to n_i. A reference: only a simulation has the data of all peers in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from coterie.clients.hints import Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.rule import Rule, State
from coterie.strategies.plans import Silent


class Local(Rule[State], strategy=Silent, group="references"):
    """Every peer trains alone."""

    any_model: ClassVar[bool] = True
    offers_model = False

    def offer(self, s: State, t: int) -> tuple[State, Mapping[str, Tensor]]:
        return s, {}

    def update(self, s: State, inbox: Inbox) -> State:
        return self.fit(s, inbox.round)


class Pooled(
    Local, group="references", reference="is trained on the data of all peers",
    exposes="it trains on the private examples of all peers",
):  # fmt: skip
    """One model, trained on the data of all peers."""

    pools: ClassVar[bool] = True

    def update(self, s: State, inbox: Inbox) -> State:
        return s.trained(self.engine.fit_pooled(s.x, s.buffers, s.opt_state, inbox.round))
