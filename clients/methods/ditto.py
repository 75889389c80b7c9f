"""Ditto (Li et al., ICML 2021, algorithm 1): a personal model regularised towards the global one.

Symbols: w `state.x` (the global model, by FedAvg), v_k `state.v`, lambda `options.lambda_`. Each
local step also moves v <- v - eta (g(v) + lambda (v - w^t)), with w^t the global model at the
start of the round.

Readings: v and w take the same number of steps, on the same minibatches, with separate optimizers
and batch-norm buffers; the penalty is part of v's objective, so momentum includes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.methods.fedprox import proximal
from coterie.clients.rule import Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Fit


@dataclass(frozen=True)
class Options:
    """Options of Ditto.

    Attributes
    ----------
    lambda_ : float
        Strength of the pull towards the global model; 0 is local training.
    """

    lambda_: Annotated[float, Range(0)] = 1.0
    grid: ClassVar[Grid] = {"lambda": (0.1, 0.3, 1.0)}


@dataclass(frozen=True)
class PersonalState(State):
    """State of a global model `x` and a separate personal model `v`.

    Attributes
    ----------
    v : Tensor, (P, d)
        Personal models.
    v_buffers : dict of str to Tensor, (P, ...)
        Their buffers.
    v_opt_state : dict of str to Tensor, (P, ...)
        Their optimizer state.
    """

    v: Tensor
    v_buffers: dict[str, Tensor]
    v_opt_state: dict[str, Tensor]

    @classmethod
    def from_start(cls, start: State, **more: Any) -> Self:
        """Start both models from the initial one."""
        x, buffers, opt_state = start.x, start.buffers, start.opt_state
        return cls(x, buffers, opt_state, v=x, v_buffers=buffers, v_opt_state=opt_state, **more)

    def trained_personal(self, fit: Fit) -> Self:
        """Return the state with the trained personal models."""
        return replace(self, v=fit.x, v_buffers=fit.buffers, v_opt_state=fit.opt_state)


class Ditto(GlobalModel[PersonalState]):
    """FedAvg with a separate personal model that is pulled towards the average."""

    def init(self) -> PersonalState:
        return PersonalState.from_start(self.start())

    def train(self, state: PersonalState, round_: int) -> PersonalState:
        fit = self.engine.fit(
            state.v,
            state.v_buffers,
            state.v_opt_state,
            self.engine.batches(round_),
            gradient=proximal(self.engine, self.options.lambda_, state.x),
        )
        return super().train(state, round_).trained_personal(fit)

    def personal(self, state: PersonalState) -> PersonalState:
        return replace(state, x=state.v, buffers=state.v_buffers)
