"""Per-FedAvg, first order (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, algorithm 1).

The shared model w `state.x` is trained to perform well after one gradient step on the peer's data,
of size a `alpha`: each local step moves w <- w - eta grad f_i(w - a grad f_i(w; B); B')
with two independent minibatches, and the peers average as in FedAvg. The personal model, evaluated
and saved, is w after one such step of size a on a minibatch of the peer.

Readings: first order (FO) omits the factor I - a Hessian, as do the papers that compare with it;
the inner step is plain gradient descent, the outer one the run's optimizer. The personal step uses
the same minibatch in every evaluation.
"""

from __future__ import annotations

from dataclasses import replace

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Batch, Buffers, GradientFunction, Gradients, Tensor
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.rule import State
from coterie.ranges import option


class PerFedAvg(
    GlobalModel[State], group="personal",
    exposes="each evaluation trains on private examples again",
):  # fmt: skip
    """One model that is good after a local step."""

    alpha: float = option(
        0.01, "Size of the step that personalises the shared model; 0 is FedAvg.",
        low=0, grid=(0.01, 0.03, 0.1),
    )  # fmt: skip

    def gradient(self, s: State, t: int) -> GradientFunction:
        inner = iter(self.engine.batches(t, Purpose.EXTRA))

        def gradient(w_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            return self.engine.gradients(self.step(w_pd, buffers, next(inner)), buffers, batch)

        return gradient

    def personal(self, s: State) -> State:
        (batch,) = self.engine.batches(0, Purpose.TUNE, steps=1)
        return replace(s, x=self.step(s.x, s.buffers, batch))

    def step(self, w_pd: Tensor, buffers: Buffers, batch: Batch) -> Tensor:
        """Return the models after the personal step, w - a grad f_i(w)."""
        return w_pd.sub(self.engine.gradients(w_pd, buffers, batch).values, alpha=self.alpha)
