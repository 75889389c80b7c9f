"""APFL (Deng, Kamani and Mahdavi 2020, algorithm 1): a mixture of a local and a shared model.

Symbols: w_i `state.x` (FedAvg's), v_i `state.v`, alpha_i `state.alpha`. In each local step, with
one minibatch and all values from before the step,

    w_i <- w_i - eta grad f_i(w_i),    v_i <- v_i - eta alpha_i grad f_i(vbar_i),
    vbar_i = alpha_i v_i + (1 - alpha_i) w_i,

and then the w_i are averaged. The personal model is vbar_i: parameters are mixed, not predictions.
With `adaptive`, alpha_i <- clip(alpha_i - eta <v_i - w_i, grad f_i(vbar_i)>, 0, 1) once per round,
at its first minibatch (equation 10); the new alpha_i takes effect at the end of the round.

Readings: the authors' code adds 0.02 alpha_i to the derivative in alpha_i; the paper and this
implementation do not. v and w have separate optimizers; the mixture has its own batch-norm buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from coterie.clients.methods.ditto import PersonalState
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.rule import Grid
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Gradients
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """Options of APFL.

    Attributes
    ----------
    alpha : float
        Share of the local model in the mixture: 0 is FedAvg, 1 local training.
    adaptive : bool
        Each peer learns its alpha, starting from `alpha`.
    """

    alpha: Annotated[float, Range(0, 1)] = 0.5
    adaptive: bool = False
    grid: ClassVar[Grid] = {"alpha": (0.25, 0.5, 0.75)}


@dataclass(frozen=True)
class APFLState(PersonalState):
    """State of APFL.

    Attributes
    ----------
    alpha : Tensor, (P,)
        Share of the local model `v` in the personal one.
    """

    alpha: Tensor

    def mixture(self, v_pd: Tensor) -> Tensor:
        """Return the personal models alpha v + (1 - alpha) x."""
        alpha_p1 = self.alpha[:, None]
        return alpha_p1 * v_pd + (1 - alpha_p1) * self.x


class APFL(GlobalModel[APFLState]):
    """FedAvg with a local model that is trained through its mixture with the average."""

    def init(self) -> APFLState:
        start = self.start()
        alpha_p = start.x.new_full((len(start.x),), self.options.alpha)
        return APFLState.from_start(start, alpha=alpha_p)

    def train(self, state: APFLState, round_: int) -> APFLState:
        engine, batches, alpha_p = self.engine, self.engine.batches(round_), state.alpha

        def gradient(v_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            nonlocal state, alpha_p
            gradients = engine.gradients(state.mixture(v_pd), buffers, batch)
            if self.options.adaptive and batch is batches[0]:
                slope_p = engine.inner(v_pd - state.x, gradients.values).to(alpha_p)
                alpha_p = alpha_p.sub(slope_p, alpha=engine.training.rate(round_)).clamp(0.0, 1.0)
            # The shared model takes its step on the same minibatch.
            state = state.trained(engine.fit(state.x, state.buffers, state.opt_state, [batch]))
            return gradients._replace(values=state.alpha[:, None] * gradients.values)

        fit = engine.fit(state.v, state.v_buffers, state.v_opt_state, batches, gradient=gradient)
        return replace(state.trained_personal(fit), alpha=alpha_p)

    def personal(self, state: APFLState) -> APFLState:
        return replace(state, x=state.mixture(state.v), buffers=state.v_buffers)
