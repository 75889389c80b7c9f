"""FedAvg without a server (McMahan et al., AISTATS 2017, algorithm 1).

Each peer trains locally, sends its model, and averages the models it received with its own:
x_i <- sum_k p_k x_k over the senders and itself, p_k proportional to n_k. On the full
topology all peers hold the same global model after a round. Batch-norm buffers stay personal.

With `mixing` = "uniform", p_k is the same for all models; with "metropolis", it is
W_ik = 1 / (1 + max(deg(i), deg(k))) for the neighbours k of peer i, and the rest for its own.

Some topologies replace p_k by their own weights W, which ignore the numbers of examples: the
base-(k+1) graph, and files with directed edges, on which peers run stochastic gradient push (Assran
et al., ICML 2019, algorithm 1; `coterie.strategies.push_sum`). With z_i the model at the start of a
round, y_i the model trained from it and w_i its push-sum weight, a peer sends
s_i = z_i + (y_i - z_i) / w_i, and then z_i <- sum_j W_ij s_j.
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
    """Options of FedAvg: none."""


class LocalTraining(Rule[S]):
    """Base of rules that train locally and send the model; subclasses implement `update`."""

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        state = self.train(state, round_)
        return state, {"x": state.x}

    def train(self, state: S, round_: int) -> S:
        """Run the local training of a round."""
        fit = self.engine.fit(
            state.x,
            state.buffers,
            state.opt_state,
            self.engine.batches(round_),
            gradient=self.gradient(state, round_),
        )
        return state.trained(fit)

    def gradient(self, state: S, round_: int) -> GradientFunction | None:
        """Return the gradient function of a round that starts at `state`; None: the local loss."""
        return None

    def shares(self) -> Floats:
        """Return the averaging weights p_k over all peers, (P, n)."""
        n_k = self.engine.samples
        return np.tile(n_k / n_k.sum(), (len(self.engine.peers), 1))

    def weights(self, state: S) -> Floats:
        shares = self.shares() * (self.engine.topology[self.engine.peers] | (self.eye() > 0))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares


class FedAvg(LocalTraining[S]):
    """Local training, then the weighted average of all received models and the peer's own."""

    mixes: ClassVar[bool] = True

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        trained, offers = super().offer(state, round_)
        return trained, {**offers, "x": self.pushed(state.x, trained.x, round_)}

    def pushed(self, start: Tensor, trained: Tensor, round_: int) -> Tensor:
        """Return the parameters (P, ...) to send, s_i, after training from `start`."""
        if self.engine.mixing is None:
            return trained
        w_p = self.engine.mixing(round_)[1][self.engine.peers]
        steps = self.engine.tensor(1 / w_p).reshape(-1, *[1] * (trained.dim() - 1))
        return start.lerp(trained, steps)  # exactly `trained` at a step of 1

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        return replace(state, x=self.average(offers, "x", self.averaging(round_)))

    def shares(self) -> Floats:
        """Return the averaging weights of the key `mixing` over all peers, (P, n)."""
        peers, near_nn = self.engine.peers, self.engine.topology
        match self.engine.weighting:
            case "samples":
                return super().shares()
            case "uniform":
                return np.full((len(peers), self.engine.n), 1 / self.engine.n)
            case "metropolis":
                degree_n = near_nn.sum(axis=1)
                weights_pn = near_nn[peers] / (1 + np.maximum(degree_n[peers, None], degree_n))
                rest_p1 = 1 - weights_pn.sum(axis=1, keepdims=True)
                return np.asarray(weights_pn + self.eye() * rest_p1)

    def averaging(self, round_: int) -> Floats:
        """Return the weights (P, n) of a round's average: `shares`, or the topology's own."""
        if self.engine.mixing is None:
            return self.shares()
        return self.engine.mixing(round_)[0][self.engine.peers]


class GlobalModel(FedAvg[S]):
    """FedAvg whose averaged model `x` differs from the personal one; reports have both."""

    reported: ClassVar[tuple[str, ...]] = ("global_test_loss", "global_test_accuracy")

    def metrics(self, state: S) -> Mapping[str, Floats]:
        losses, accuracies = self.engine.losses(state.x, state.buffers, "test")
        return {
            "global_test_loss": losses.cpu().numpy(),
            "global_test_accuracy": accuracies.cpu().numpy(),
        }
