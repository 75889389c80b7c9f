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

from coterie.clients.hints import Batch, Buffers, Gradients, Tensor
from coterie.clients.methods.ditto import PersonalState
from coterie.clients.methods.fedavg import GlobalModel
from coterie.ranges import option


@dataclass(frozen=True)
class APFLState(PersonalState):
    """State of APFL."""

    alpha: Tensor  # share of the local model `v` in the personal one, (P,)

    def mixed(self, v_pd: Tensor) -> Tensor:
        """Return the personal models alpha v + (1 - alpha) x."""
        alpha_p1 = self.alpha[:, None]
        return alpha_p1 * v_pd + (1 - alpha_p1) * self.x


class APFL(GlobalModel[APFLState], group="personal"):
    """A mixture of a personal model and FedAvg's."""

    alpha: float = option(
        0.5, "Share of the local model in the mixture: 0 is FedAvg, 1 local training.",
        low=0, high=1, grid=(0.25, 0.5, 0.75),
    )  # fmt: skip
    adaptive: bool = option(False, "Each peer learns its alpha, starting from `alpha`.")

    def init(self) -> APFLState:
        start = self.start()
        alpha_p = start.x.new_full((len(start.x),), self.alpha)
        return APFLState.from_start(start, alpha=alpha_p)

    def train(self, s: APFLState, t: int) -> APFLState:
        engine, batches, alpha_p = self.engine, self.engine.batches(t), s.alpha
        later = replace(engine.training, reset_optimizer=False)

        def gradient(v_pd: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            nonlocal s, alpha_p
            gradients = engine.gradients(s.mixed(v_pd), buffers, batch)
            if self.adaptive and batch is batches[0]:
                slope_p = engine.inner(v_pd - s.x, gradients.values).to(alpha_p)
                alpha_p = alpha_p.sub(slope_p, alpha=engine.training.rate(t)).clamp(0.0, 1.0)
            # The shared model steps on the same minibatch; a new round may reset its optimizer.
            training = engine.training if batch is batches[0] else later
            s = s.trained(engine.fit(s.x, s.buffers, s.opt_state, [batch], training=training))
            return gradients._replace(values=s.alpha[:, None] * gradients.values)

        fit = engine.fit(s.v, s.v_buffers, s.v_opt_state, batches, gradient=gradient)
        return replace(s.trained_personal(fit), alpha=alpha_p)

    def personal(self, s: APFLState) -> APFLState:
        return replace(s, x=s.mixed(s.v), buffers=s.v_buffers)
