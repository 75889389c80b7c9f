"""FedAvg without a server (McMahan et al., AISTATS 2017, algorithm 1).

Each peer trains locally, shows its model, and averages what it received with its own:
x_i <- sum_k p_k x_k over the senders and itself, p_k proportional to n_k. On the full
topology all peers hold the same global model after a round. Batch-norm buffers stay personal.

Some topologies bring weights W of their own in the place of p_k, and all peers count the same: the
base-(k+1) graph, and a file whose edges have a direction, along which peers do stochastic gradient
push (Assran et al., ICML 2019, algorithm 1; `coterie.strategies.push_sum`). With z_i the model that a round
starts from and y_i the one trained from it, a peer shows z_i + (y_i - z_i) / w_i, where w_i is what
its model counts for in the mean of all; then z_i <- sum_j W_ij (what j shows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from coterie.clients.letters import Letters
from coterie.clients.rule import Floats, Rule, State

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import GradientFunction

S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Options:
    """FedAvg has no options."""


class LocalTraining(Rule[S]):
    """Local training, then all models are shown; what becomes of them is up to a subclass."""

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        return state, {"x": state.x}

    def train(self, state: S, round_: int) -> S:
        """The local training of a round."""
        fit = self.engine.fit(
            state.x,
            state.buffers,
            state.opt_state,
            self.engine.batches(round_),
            gradient=self.gradient(state, round_),
        )
        return state.trained(fit)

    def gradient(self, state: S, round_: int) -> GradientFunction | None:
        """What the models descend in a round that starts at `state`; None: their own loss."""
        return None

    def shares(self) -> Floats:
        """(P, n) share each peer would give every peer's model: p_k."""
        n_k = self.engine.samples
        return np.tile(n_k / n_k.sum(), (len(self.engine.peers), 1))

    def weights(self, state: S) -> Floats:
        shares = self.shares() * (self.engine.topology[self.engine.peers] | (self.eye() > 0))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares


class FedAvg(LocalTraining[S]):
    """Local training, then the average over all models received."""

    mixes: ClassVar[bool] = True

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        trained, offers = super().offer(state, round_)
        return trained, {**offers, "x": self.pushed(state.x, trained.x, round_)}

    def pushed(self, start: Tensor, trained: Tensor, round_: int) -> Tensor:
        """(P, ...) what is shown of parameters that a round trained from `start`."""
        if self.engine.mixing is None:
            return trained
        w_p = self.engine.mixing(round_)[1][self.engine.peers]
        steps = self.engine.tensor(1 / w_p).reshape(-1, *[1] * (trained.dim() - 1))
        return start.lerp(trained, steps)  # at 1 it is `trained`, to the bit

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        return replace(state, x=self.average(offers, "x", self.averaging(round_)))

    def averaging(self, round_: int) -> Floats:
        """(P, n) weights of a round's average: p_k, unless the topology has weights of its own."""
        if self.engine.mixing is None:
            return self.shares()
        return self.engine.mixing(round_)[0][self.engine.peers]


class GlobalModel(FedAvg[S]):
    """FedAvg whose averaged model `x` is not yet the personal one: reports have both."""

    reported: ClassVar[tuple[str, ...]] = ("global_test_loss", "global_test_accuracy")

    def metrics(self, state: S) -> Mapping[str, Floats]:
        losses, accuracies = self.engine.losses(state.x, state.buffers, "test")
        return {
            "global_test_loss": losses.cpu().numpy(),
            "global_test_accuracy": accuracies.cpu().numpy(),
        }
