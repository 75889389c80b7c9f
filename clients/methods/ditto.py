"""Ditto (Li et al., ICML 2021, algorithm 1): a personal model regularised towards the shared one.

Symbols: w `state.x` (the global model, by FedAvg), v_k `state.v`, lambda `options.lambda_`. Each
local step also moves v <- v - eta (g(v) + lambda (v - w^t)), w^t the global model at the START of
the round.

Readings: v and w take equally many steps, on the same minibatches; each has an optimizer and
batch-norm buffers of its own; the penalty is part of v's objective, so momentum sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.methods.fedprox import proximal
from coterie.clients.rule import Grid, State

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Fit


@dataclass(frozen=True)
class Options:
    """Ditto's option.

    Attributes
    ----------
    lambda_ : strength of the pull towards the global model; 0 is local training.
    """

    lambda_: float = 1.0
    grid: ClassVar[Grid] = {"lambda": (0.1, 0.3, 1.0)}

    def __post_init__(self) -> None:
        if self.lambda_ < 0:
            raise ValueError("lambda must not be negative")


@dataclass(frozen=True)
class OwnState(State):
    """A global model in `x`, and beside it one of the peer's own.

    Attributes
    ----------
    v, v_buffers, v_opt_state : to the own model what `x`, `buffers`, `opt_state` are to the global
    one.
    """

    v: Tensor
    v_buffers: dict[str, Tensor]
    v_opt_state: dict[str, Tensor]

    @classmethod
    def beside(cls, start: State, **more: Any) -> Self:
        """Both models at the common start."""
        x, buffers, opt_state = start.x, start.buffers, start.opt_state
        return cls(x, buffers, opt_state, v=x, v_buffers=buffers, v_opt_state=opt_state, **more)

    def own(self, fit: Fit) -> Self:
        """The state after the own models were trained."""
        return replace(self, v=fit.x, v_buffers=fit.buffers, v_opt_state=fit.opt_state)


class Ditto(GlobalModel[OwnState]):
    """FedAvg, and beside it an own model that is pulled towards the average."""

    def init(self) -> OwnState:
        return OwnState.beside(self.start())

    def train(self, state: OwnState, round_: int) -> OwnState:
        fit = self.engine.fit(
            state.v,
            state.v_buffers,
            state.v_opt_state,
            self.engine.batches(round_),
            gradient=proximal(self.engine, self.options.lambda_, state.x),
        )
        return super().train(state, round_).own(fit)

    def personal(self, state: OwnState) -> OwnState:
        return replace(state, x=state.v, buffers=state.v_buffers)
