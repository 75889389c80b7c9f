"""Pooled: one model trained on the examples of all peers, what pooling the data would give.

x <- x - eta g(x), where g is the gradient on minibatches drawn from the examples of all peers; each
peer evaluates x on its own data. The loss of a problem without examples is sum_i p_i f_i, p_i
proportional to n_i. A reference: only a simulation has the data of all peers in one place.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.clients.inbox import Inbox
from coterie.clients.methods.local import Local
from coterie.clients.rule import State


class Pooled(
    Local, group="references", reference="is trained on the data of all peers",
    exposes="it trains on the private examples of all peers",
):  # fmt: skip
    """One model, trained on the data of all peers."""

    pools: ClassVar[bool] = True

    def update(self, s: State, inbox: Inbox) -> State:
        return s.trained(self.engine.fit_pooled(s.x, s.buffers, s.opt_state, inbox.round))
