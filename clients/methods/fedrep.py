"""FedRep (Collins et al., ICML 2021, algorithm 1): a shared body and a personal head.

Symbols: phi the body and h_i the head of `state.x`; the head is the network's last layer. In a
round a peer trains its head for `head-epochs` with phi frozen, then phi for the run's local
training with h_i frozen, and sends phi only; the peers average the bodies they received. The
personal model is the averaged body with the peer's head, which was trained on the previous average
(the paper's output).

Readings: head and body have separate optimizers, so that neither momentum nor weight decay changes
frozen parameters; batch-norm statistics are personal and updated by both phases. A network of one
layer has no body: nothing is shared and every peer trains alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Engine, Fit, GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class Options:
    """Options of FedRep.

    Attributes
    ----------
    head_epochs : int
        Passes over the peer's data per round to train the head.
    """

    head_epochs: Annotated[int, Range(1)] = 10
    grid: ClassVar[Grid] = {"head-epochs": (1, 3, 10)}


@dataclass(frozen=True)
class FedRepState(State):
    """State of FedRep; `opt_state` is that of the body.

    Attributes
    ----------
    head_opt_state : dict of str to Tensor, (P, ...)
        Optimizer state of the head.
    """

    head_opt_state: dict[str, Tensor]


T = TypeVar("T", bound=FedRepState)


class FedRep(FedAvg[T]):
    """FedAvg of the network's body, with personal heads that are trained before it."""

    offers_model: ClassVar[bool] = False

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self.head = engine.network.columns(engine.network.head).to(engine.device)

    def init(self) -> T:
        return self.separate()  # type: ignore[return-value]  # T is FedRepState unless overridden

    def separate(self) -> FedRepState:
        """Return the state before round 1, with separate optimizers of body and head."""
        start, opt_state = self.start(), self.engine.opt_state
        return FedRepState(
            start.x,
            start.buffers,
            opt_state(start.x[:, ~self.head]),
            opt_state(start.x[:, self.head]),
        )

    def offer(self, state: T, round_: int) -> tuple[T, Mapping[str, Tensor]]:
        trained = self.train(state, round_)
        body_pc = self.pushed(state.x[:, ~self.head], trained.x[:, ~self.head], round_)
        return trained, {"body": body_pc}

    def train(self, state: T, round_: int) -> T:
        epochs = self.engine.batches(round_, Purpose.EXTRA, epochs=self.options.head_epochs)
        own = self.engine.gradients
        head = self._fit(self.head, state, state.head_opt_state, epochs, own)
        state = replace(state, x=head.x, buffers=head.buffers, head_opt_state=head.opt_state)
        batches, of_body = self.engine.batches(round_), self.body_gradient(state)
        return state.trained(self._fit(~self.head, state, state.opt_state, batches, of_body))

    def body_gradient(self, state: T) -> GradientFunction:
        """Return the gradient function of whole models that the body descends in a round."""
        return self.engine.gradients

    def _fit(
        self,
        mask_d: Tensor,
        state: State,
        opt_state: dict[str, Tensor],
        batches: Sequence[Batch],
        of_model: GradientFunction,
    ) -> Fit:
        """Train the parameters of a mask; the others are frozen."""

        def gradient(part_pc: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            gradients = of_model(filled(state.x, mask_d, part_pc), buffers, batch)
            return gradients._replace(values=gradients.values[:, mask_d])

        if not mask_d.any():
            batches = []
        part = state.x[:, mask_d]
        fit = self.engine.fit(part, state.buffers, opt_state, batches, gradient=gradient)
        return fit._replace(x=filled(state.x, mask_d, fit.x))

    def update(self, state: T, round_: int, offers: Letters, sent: Letters, answers: Letters) -> T:
        body_pc = self.average(offers, "body", self.averaging(round_))
        return replace(state, x=filled(state.x, ~self.head, body_pc))


def filled(x_pd: Tensor, mask_d: Tensor, part_pc: Tensor) -> Tensor:
    """Return the models with the parameters of a mask replaced."""
    result = x_pd.clone()
    result[:, mask_d] = part_pc
    return result
