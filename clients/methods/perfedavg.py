"""Per-FedAvg, first order (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, algorithm 1).

The shared model w `state.x` is trained to perform well after one gradient step on the peer's data,
of size a `options.alpha`: each local step moves w <- w - eta grad f_i(w - a grad f_i(w; B); B')
with two independent minibatches, and the peers average as in FedAvg. The personal model, evaluated
and saved, is w after one such step of size a on a minibatch of the peer.

Readings: first order (FO) omits the factor I - a Hessian, as do the papers that compare with it;
the inner step is plain gradient descent, the outer one the run's optimizer. The personal step uses
the same minibatch in every evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.rule import Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """Options of Per-FedAvg.

    Attributes
    ----------
    alpha : float
        Size of the step that personalises the shared model; 0 is FedAvg.
    """

    alpha: Annotated[float, Range(0)] = 0.01
    grid: ClassVar[Grid] = {"alpha": (0.01, 0.03, 0.1)}


class PerFedAvg(GlobalModel[State]):
    """FedAvg on the loss of a model after one gradient step on the peer's data."""

    def gradient(self, state: State, round_: int) -> GradientFunction:
        inner = iter(self.engine.batches(round_, Purpose.EXTRA))

        def gradient(w_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            return self.engine.gradients(self._step(w_pd, buffers, next(inner)), buffers, batch)

        return gradient

    def personal(self, state: State) -> State:
        (batch,) = self.engine.batches(0, Purpose.TUNE, steps=1)
        return replace(state, x=self._step(state.x, state.buffers, batch))

    def _step(self, w_pd: Tensor, buffers: Buffers, batch: Batch) -> Tensor:
        return w_pd.sub(
            self.engine.gradients(w_pd, buffers, batch).values, alpha=self.options.alpha
        )
