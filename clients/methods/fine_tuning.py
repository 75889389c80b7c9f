"""FedAvg + FT and FedProx + FT: the shared model, fine-tuned by each peer at the end.

The peers run FedAvg or FedProx; each keeps the global model with the smallest loss so far on its
validation data (including the initial model). Its personal model is that one after `epochs` passes
over its training data with a new optimizer (DPFL, appendix F.6: twice a round's local epochs;
FedeRiCo: one).

Readings: fine-tuning never feeds back into the shared model, so every evaluation shows the model
that the peer would have if the run ended there, costs included; it uses the same minibatches every
time. A peer without validation data takes the current global model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coterie.clients.engine.streams import Purpose
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import FedProx, GlobalModel
from coterie.clients.parts.validation import (
    CHOOSES_MODELS,
    Kept,
    better,
    buffers_of,
    with_validation_loss,
)
from coterie.clients.rule import State
from coterie.ranges import option

EPOCHS = "Passes over the peer's data, from the best global model (10: DPFL on CIFAR-10)."


@dataclass(frozen=True)
class BestState(State):
    """State of FedAvg with fine-tuning."""

    best: Kept  # global models with the smallest validation loss so far


class FineTuned(GlobalModel[BestState], group="personal", exposes=CHOOSES_MODELS):
    """FedAvg, fine-tuned by each peer."""

    epochs: int = option(10, EPOCHS, low=0, grid=(1, 3, 10))

    def init(self) -> BestState:
        start = self.start()
        best = with_validation_loss(self.engine, start.x, start.buffers)
        return self.begin(start, best=best)

    def update(self, s: BestState, inbox: Inbox) -> BestState:
        s = super().update(s, inbox)
        new = with_validation_loss(self.engine, s.x, s.buffers)
        return replace(s, best=better(self.engine, s.best, new))

    def personal(self, s: BestState) -> BestState:
        best, batches = s.best, self.engine.batches(0, Purpose.TUNE, epochs=self.epochs)
        opt_state = self.engine.opt_state(best["x"])
        fit = self.engine.fit(best["x"], buffers_of(best), opt_state, batches)
        return replace(s, x=fit.x, buffers=fit.buffers)


class FineTunedProx(FineTuned, FedProx[BestState], group="personal"):
    """FedProx, fine-tuned by each peer."""

    epochs: int = option(10, EPOCHS, low=0)  # tuning tries `mu`
