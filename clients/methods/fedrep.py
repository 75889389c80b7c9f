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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import State
from coterie.clients.training import Terms
from coterie.ranges import option


@dataclass(frozen=True)
class FedRepState(State):
    """State of FedRep; `opt_state` is that of the body."""

    head_opt_state: dict[str, Tensor]  # (P, ...)


T = TypeVar("T", bound=FedRepState)


class FedRep(FedAvg[T], group="personal"):
    """A shared body, and a personal head."""

    offers_model = False

    head_epochs: int = option(
        10, "Passes over the peer's data per round to train the head.", low=1, grid=(1, 3, 10)
    )

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
        network, batches = self.engine.network, self.engine.batches(t)
        head = [name for name in network.names if name in network.head]
        body = [name for name in network.names if name not in network.head]
        fit = self.engine.fit(
            s.x, s.buffers, s.head_opt_state, epochs if head else [], terms=Terms(trained=head)
        )
        s = replace(s, x=fit.x, buffers=fit.buffers, head_opt_state=fit.opt_state)
        fit = self.engine.fit(
            s.x, s.buffers, s.opt_state, batches if body else [],
            gradient=self.gradient(s, t), terms=Terms(trained=body),
        )  # fmt: skip
        return s.trained(fit)

    def update(self, s: T, inbox: Inbox) -> T:
        body_pc = inbox.average("body", self.averaging(inbox.round))
        return replace(s, x=filled(s.x, ~self.head, body_pc))


def filled(x_pd: Tensor, mask_d: Tensor, part_pc: Tensor) -> Tensor:
    """Return the models with the parameters of a mask replaced."""
    result = x_pd.clone()
    result[:, mask_d] = part_pc
    return result
