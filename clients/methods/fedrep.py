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
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import State
from coterie.ranges import option

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import Batch
    from coterie.clients.engine.engine import Fit, GradientFunction, Gradients
    from coterie.clients.engine.network import Buffers


@dataclass(frozen=True)
class FedRepState(State):
    """State of FedRep; `opt_state` is that of the body."""

    head_opt_state: dict[str, Tensor]  # (P, ...)


T = TypeVar("T", bound=FedRepState)


class FedRep(FedAvg[T], group="personal", summary="a shared body, and a personal head"):
    """FedAvg of the network's body, with personal heads that are trained before it."""

    offers_model = False

    head_epochs: int = option(
        10, "Passes over the peer's data per round to train the head.", low=1, grid=(1, 3, 10)
    )

    @cached_property
    def head(self) -> Tensor:
        """Mask of the head's parameters, (d,)."""
        return self.engine.network.columns(self.engine.network.head).to(self.engine.device)

    def init(self) -> T:
        return self.separate(self.start())

    def separate(self, start: State, **more: Any) -> T:
        """Return the state before round 1, with separate optimizers of body and head."""
        opt_state = self.engine.opt_state
        start = replace(start, opt_state=opt_state(start.x[:, ~self.head]))
        return self.begin(start, head_opt_state=opt_state(start.x[:, self.head]), **more)

    def offer(self, s: T, t: int) -> tuple[T, Mapping[str, Tensor]]:
        trained = self.train(s, t)
        return trained, {"body": self.pushed(s.x[:, ~self.head], trained.x[:, ~self.head], t)}

    def train(self, s: T, t: int) -> T:
        epochs = self.engine.batches(t, Purpose.EXTRA, epochs=self.head_epochs)
        head = self._fit(self.head, s, s.head_opt_state, epochs, self.engine.gradients)
        s = replace(s, x=head.x, buffers=head.buffers, head_opt_state=head.opt_state)
        batches, of_body = self.engine.batches(t), self.body_gradient(s)
        return s.trained(self._fit(~self.head, s, s.opt_state, batches, of_body))

    def body_gradient(self, s: T) -> GradientFunction:
        """Return the gradient function of whole models that the body descends in a round."""
        return self.engine.gradients

    def _fit(
        self, mask_d: Tensor, s: State, opt_state: dict[str, Tensor], batches: Sequence[Batch],
        of_model: GradientFunction,
    ) -> Fit:  # fmt: skip
        """Train the parameters of a mask; the others are frozen."""

        def gradient(part_pc: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
            gradients = of_model(filled(s.x, mask_d, part_pc), buffers, batch)
            return gradients._replace(values=gradients.values[:, mask_d])

        if not mask_d.any():
            batches = []
        fit = self.engine.fit(s.x[:, mask_d], s.buffers, opt_state, batches, gradient=gradient)
        return fit._replace(x=filled(s.x, mask_d, fit.x))

    def update(self, s: T, inbox: Inbox) -> T:
        body_pc = inbox.average("body", self.averaging(inbox.round))
        return replace(s, x=filled(s.x, ~self.head, body_pc))


def filled(x_pd: Tensor, mask_d: Tensor, part_pc: Tensor) -> Tensor:
    """Return the models with the parameters of a mask replaced."""
    result = x_pd.clone()
    result[:, mask_d] = part_pc
    return result
