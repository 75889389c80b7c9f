"""Ditto (Li et al., ICML 2021, algorithm 1): a personal model regularised towards the global one.

Symbols: w `state.x` (the global model, by FedAvg), v_k `state.v`, lambda `lambda_`. Each
local step also moves v <- v - eta (g(v) + lambda (v - w^t)), with w^t the global model at the
start of the round.

Readings: v and w take the same number of steps, on the same minibatches, with separate optimizers
and batch-norm buffers; the penalty is part of v's objective, so momentum includes it.

APFL (Deng, Kamani and Mahdavi 2020, algorithm 1): a mixture of a local and a shared model.

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
from typing import Any, Self

from coterie.clients.hints import Batch, Buffers, Fit, Gradients, Tensor
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
        x, buffers, opt_state = start.x, start.buffers, start.opt_state
        return cls(x, buffers, opt_state, v=x, v_buffers=buffers, v_opt_state=opt_state, **more)

    def trained_personal(self, fit: Fit) -> Self:
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
