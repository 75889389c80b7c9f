"""Ditto (Li et al., ICML 2021, algorithm 1): a personal model regularised towards the global one.

Symbols: w `state.x` (the global model, by FedAvg), v_k `state.v`, lambda `lambda_`. Each
local step also moves v <- v - eta (g(v) + lambda (v - w^t)), with w^t the global model at the
start of the round.

Readings: v and w take the same number of steps, on the same minibatches, with separate optimizers
and batch-norm buffers; the penalty is part of v's objective, so momentum includes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from coterie.clients.hints import Fit, Tensor
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.rule import State
from coterie.clients.training import Terms
from coterie.ranges import option


@dataclass(frozen=True)
class PersonalState(State):
    """State of a global model `x` and a separate personal model `v`."""

    v: Tensor  # personal models, (P, d)
    v_buffers: dict[str, Tensor]  # their buffers, (P, ...)
    v_opt_state: dict[str, Tensor]  # their optimizer state, (P, ...)

    @classmethod
    def from_start(cls, start: State, **more: Any) -> Self:
        """Start both models from the initial one."""
        x, buffers, opt_state = start.x, start.buffers, start.opt_state
        return cls(x, buffers, opt_state, v=x, v_buffers=buffers, v_opt_state=opt_state, **more)

    def trained_personal(self, fit: Fit) -> Self:
        """Return the state with the trained personal models."""
        return replace(self, v=fit.x, v_buffers=fit.buffers, v_opt_state=fit.opt_state)


class Ditto(GlobalModel[PersonalState], group="personal"):
    """A personal model per peer, pulled towards FedAvg's."""

    lambda_: float = option(
        1.0, "Strength of the pull towards the global model; 0 is local training.",
        low=0, grid=(0.1, 0.3, 1.0),
    )  # fmt: skip

    def init(self) -> PersonalState:
        return PersonalState.from_start(self.start())

    def train(self, s: PersonalState, t: int) -> PersonalState:
        batches, terms = self.engine.batches(t), Terms(proximal=(self.lambda_, s.x))
        fit = self.engine.fit(s.v, s.v_buffers, s.v_opt_state, batches, terms=terms)
        return self.fit(s, t, batches=batches).trained_personal(fit)

    def personal(self, s: PersonalState) -> PersonalState:
        return replace(s, x=s.v, buffers=s.v_buffers)
