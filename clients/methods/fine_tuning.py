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
from typing import Annotated, ClassVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Letters
from coterie.clients.methods import fedprox
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.parts.validation import Kept, better, buffers_of, with_validation_loss
from coterie.clients.rule import Grid, State
from coterie.ranges import Range


@dataclass(frozen=True)
class Options:
    """Options of fine-tuning.

    Attributes
    ----------
    epochs : int
        Passes over the peer's data, from the best global model (10: DPFL on CIFAR-10).
    """

    epochs: Annotated[int, Range(0)] = 10
    grid: ClassVar[Grid] = {"epochs": (1, 3, 10)}


@dataclass(frozen=True)
class ProxOptions(Options, fedprox.Options):
    """Options of FedProx and of fine-tuning."""

    grid: ClassVar[Grid] = fedprox.Options.grid


@dataclass(frozen=True)
class BestState(State):
    """State of FedAvg with fine-tuning.

    Attributes
    ----------
    best : Kept
        Global models with the smallest validation loss so far.
    """

    best: Kept


class FineTuned(GlobalModel[BestState]):
    """FedAvg whose personal models are fine-tuned copies of the best global model."""

    def init(self) -> BestState:
        start = self.start()
        return BestState(
            **vars(start), best=with_validation_loss(self.engine, start.x, start.buffers)
        )

    def update(
        self, state: BestState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> BestState:
        state = super().update(state, round_, offers, sent, answers)
        new = with_validation_loss(self.engine, state.x, state.buffers)
        return replace(state, best=better(self.engine, state.best, new))

    def personal(self, state: BestState) -> BestState:
        best, batches = state.best, self.engine.batches(0, Purpose.TUNE, epochs=self.options.epochs)
        opt_state = self.engine.opt_state(best["x"])
        fit = self.engine.fit(best["x"], buffers_of(best), opt_state, batches)
        return replace(state, x=fit.x, buffers=fit.buffers)


class FineTunedProx(FineTuned, fedprox.FedProx[BestState]):
    """FedProx whose personal models are fine-tuned copies of the best global model."""
