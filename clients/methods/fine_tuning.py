"""FedAvg + FT and FedProx + FT: the shared model, fine-tuned by each peer at the end.

The peers run FedAvg or FedProx; each keeps the global model that did best on its own validation
data so far (least loss, the start included), and its personal model is that one after `epochs`
passes over its own data with a fresh optimizer (DPFL, appendix F.6: twice a round's local epochs;
FedeRiCo: one).

Readings: fine-tuning never feeds back into the shared model, so every report shows what the peer
would have if the run ended there, costs included. Its minibatches are the same ones whenever
it happens. A peer without validation data takes the current global model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Letters
from coterie.clients.methods import fedprox
from coterie.clients.methods.fedavg import GlobalModel
from coterie.clients.parts.validation import Kept, better, buffers_of, with_validation_loss
from coterie.clients.rule import Grid, State


@dataclass(frozen=True)
class Options:
    """The option of fine-tuning.

    Attributes
    ----------
    epochs : passes over the own data from the best global model (10: DPFL on CIFAR-10).
    """

    epochs: int = 10
    grid: ClassVar[Grid] = {"epochs": (1, 3, 10)}

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError("epochs must not be negative")


@dataclass(frozen=True)
class ProxOptions(Options, fedprox.Options):
    """Those of FedProx, and of fine-tuning."""

    grid: ClassVar[Grid] = fedprox.Options.grid

    def __post_init__(self) -> None:
        fedprox.Options.__post_init__(self)
        super().__post_init__()


@dataclass(frozen=True)
class BestState(State):
    """The shared model's state, and the `best` one put aside."""

    best: Kept


class FineTuned(GlobalModel[BestState]):
    """FedAvg, and a copy of the best global model tuned to the own data."""

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
    """FedProx, and a copy of the best global model tuned to the own data."""
