"""FedAvg + FT and FedProx + FT: the shared model, fine-tuned by each peer at the end.

The peers run FedAvg or FedProx; each keeps the global model that did best on its own validation
data so far (least loss, the start included), and its personal model is that one after `epochs`
passes over its own data with a fresh optimizer (DPFL, appendix F.6: twice a round's local epochs;
FedeRiCo: one).

Readings: fine-tuning never feeds back into the shared model, so every report shows what the peer
would have if the run ended there, the bill included. Its minibatches are the same ones whenever
it happens. A peer without validation data takes the current global model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clients import fedprox
from clients.fedavg import GlobalModel
from clients.letters import Letters
from clients.rule import Grid, State
from clients.streams import Purpose

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """`epochs`: passes over the own data from the best global model (10: DPFL on CIFAR-10)."""

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
    """The shared model's state, and the best one put aside.

    Attributes
    ----------
    best, best_buffers : as `x` and `buffers`.
    best_loss : (P,) its validation loss.
    """

    best: Tensor
    best_buffers: dict[str, Tensor]
    best_loss: Tensor


class FineTuned(GlobalModel[BestState]):
    """FedAvg, and a copy of the best global model tuned to the own data."""

    def init(self) -> BestState:
        start = self.start()
        loss_p = self.engine.losses(start.x, start.buffers, "validation").losses
        return BestState(**vars(start), best=start.x, best_buffers=start.buffers, best_loss=loss_p)

    def absorb(
        self, state: BestState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> BestState:
        state = super().absorb(state, round_, offers, sent, answers)
        loss_p = self.engine.losses(state.x, state.buffers, "validation").losses
        unjudged_p = self.engine.data.shards["validation"].lengths_p == 0
        better_p = (loss_p < state.best_loss) | loss_p.new_tensor(unjudged_p).bool()

        def newer(now: Tensor, before: Tensor) -> Tensor:
            return now.where(better_p.view(-1, *[1] * (now.dim() - 1)), before)

        return replace(
            state,
            best=newer(state.x, state.best),
            best_buffers={k: newer(v, state.best_buffers[k]) for k, v in state.buffers.items()},
            best_loss=newer(loss_p, state.best_loss),
        )

    def personal(self, state: BestState) -> BestState:
        fit = self.engine.fit(
            state.best,
            state.best_buffers,
            self.engine.slots(state.best),
            self.engine.batches(0, Purpose.TUNE, epochs=self.options.epochs),
        )
        return replace(state, x=fit.x, buffers=fit.buffers)


class FineTunedProx(FineTuned, fedprox.FedProx[BestState]):
    """FedProx, and a copy of the best global model tuned to the own data."""
