"""FedAvg without a server (McMahan et al., AISTATS 2017, algorithm 1).

Each peer trains locally, sends its model, and averages the models it received with its own:
x_i <- sum_k p_k x_k over the senders and itself, p_k proportional to n_k. On the full
topology all peers hold the same global model after a round. Batch-norm buffers stay personal.

With `mixing` = "uniform", p_k is the same for all models; with "metropolis", it is
W_ik = 1 / (1 + max(deg(i), deg(k))) for the neighbours k of peer i, and the rest for its own.

The topology `push` and files with directed edges replace p_k by weights W that ignore the numbers
of examples: on them peers run stochastic gradient push (Assran et al., ICML 2019, algorithm 1;
`coterie.strategies.push_sum`). With z_i the model at the start of a
round, y_i the model trained from it and w_i its push-sum weight, a peer sends
s_i = z_i + (y_i - z_i) / w_i, and then z_i <- sum_j W_ij s_j.

FedProx (Li et al., MLSys 2020, algorithm 2): FedAvg with a proximal term in local training.

Symbols: w `state.x` within a round, w^t the averaged model at the start of the round, mu
`mu`. Each local step descends h(w) = f_i(w) + mu/2 |w - w^t|^2 (equation 2); then the
peers average as in FedAvg.

Readings: the penalty is part of the objective, so momentum and Adam include it; every peer does the
same amount of local work, `local-steps` (no stragglers).

Oracle: FedAvg inside the true clusters, an upper bound; only synthetic partitions know them.

FedAvg + FT and FedProx + FT: the shared model, fine-tuned by each peer at the end.

The peers run FedAvg or FedProx; each keeps the global model with the smallest loss so far on its
validation data (including the initial model). Its personal model is that one after `epochs` passes
over its training data with a new optimizer (DPFL, appendix F.6: twice a round's local epochs;
FedeRiCo: one).

Readings: fine-tuning never feeds back into the shared model, so every evaluation shows the model
that the peer would have if the run ended there, costs included; it uses the same minibatches every
time. A peer without validation data takes the current global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Bools, Floats, GradientFunction, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.parts import validation
from coterie.clients.parts.validation import CHOOSES_MODELS, Kept
from coterie.clients.rule import Clustered, Rule, S, State, true_clusters
from coterie.ranges import option
from coterie.strategies.plans import Wanted


class LocalTraining(Rule[S]):
    """Base of rules that train locally and send the model; subclasses implement `update`."""

    def offer(self, s: S, t: int) -> tuple[S, Mapping[str, Tensor]]:
        s = self.train(s, t)
        return s, {"x": s.x}

    def train(self, s: S, t: int) -> S:
        return self.fit(s, t, gradient=self.gradient(s, t))

    def gradient(self, s: S, t: int) -> GradientFunction | None:
        """Return the gradient function of a round that starts at `s`; None: the local loss."""
        return None

    @cached_property
    def head(self) -> Tensor:
        """Mask of the parameters of the network's last layer, (d,)."""
        return self.engine.network.columns(self.engine.network.head).to(self.engine.device)

    def shares(self) -> Floats:
        """Return the averaging weights p_k over all peers, (P, n)."""
        n_k = self.engine.samples
        return np.tile(n_k / n_k.sum(), (len(self.engine.peers), 1))

    def weights(self, s: S) -> Floats:
        if hasattr(s, "w"):
            return super().weights(s)
        shares = self.shares() * (self.near | (self.eye() > 0))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares


class FedAvg(LocalTraining[S], group="alike"):
    """One model, averaged over all."""

    mixes = True

    def offer(self, s: S, t: int) -> tuple[S, Mapping[str, Tensor]]:
        trained = self.train(s, t)
        return trained, {"x": self.pushed(s.x, trained.x, t)}

    def pushed(self, start: Tensor, trained: Tensor, t: int) -> Tensor:
        """Return the parameters (P, ...) to send, s_i, after training from `start`."""
        if self.engine.mixing is None:
            return trained
        w_p = self.engine.mixing(t)[1][self.engine.peers]
        steps = self.engine.tensor(1 / w_p).reshape(-1, *[1] * (trained.dim() - 1))
        return start.lerp(trained, steps)  # exactly `trained` at a step of 1

    def update(self, s: S, inbox: Inbox) -> S:
        return replace(s, x=inbox.average("x", self.averaging(inbox.round)))

    def shares(self) -> Floats:
        """Return the averaging weights of the key `mixing` over all peers, (P, n)."""
        match self.engine.weighting:
            case "samples":
                return super().shares()
            case "uniform":
                return np.full((len(self.engine.peers), self.engine.n), 1 / self.engine.n)
            case "metropolis":
                degree_n, peers = self.engine.topology.sum(axis=1), self.engine.peers
                weights_pn = self.near / (1 + np.maximum(degree_n[peers, None], degree_n))
                rest_p1 = 1 - weights_pn.sum(axis=1, keepdims=True)
                return np.asarray(weights_pn + self.eye() * rest_p1)

    def averaging(self, t: int) -> Floats:
        """Return the weights (P, n) of a round's average: `shares`, or the topology's own."""
        if self.engine.mixing is None:
            return self.shares()
        return self.engine.mixing(t)[0][self.engine.peers]


class GlobalModel(FedAvg[S]):
    """FedAvg whose averaged model `x` differs from the personal one; reports have both."""

    reported = ("global_test_loss", "global_test_accuracy")

    def metrics(self, s: S) -> Mapping[str, Floats]:
        losses, accuracies = self.engine.losses(s.x, s.buffers, "test")
        return dict(
            zip(self.reported, (losses.cpu().numpy(), accuracies.cpu().numpy()), strict=True)
        )


class FedProx(FedAvg[S], group="alike"):
    """FedAvg with a proximal term in local training."""

    mu: float = option(
        0.1, "Strength of the pull towards the model at the start of the round.",
        low=0, grid=(0.01, 0.1, 1.0),
    )  # fmt: skip

    def train(self, s: S, t: int) -> S:
        return self.fit(s, t, proximal=(self.mu, s.x))


class Oracle(LocalTraining[State], strategy=Wanted, group="references", true_clusters=True):
    """FedAvg inside the true cluster."""

    def check_data(self, problem: Clustered) -> None:
        true_clusters(problem)

    def wants(self, s: State, t: int) -> Bools:
        return self.same_cluster()

    def update(self, s: State, inbox: Inbox) -> State:
        return replace(s, x=inbox.average("x", self.shares()))

    def shares(self) -> Floats:
        return super().shares() * self.same_cluster()


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
        best = validation.with_validation_loss(self.engine, start.x, start.buffers)
        return self.begin(start, best=best)

    def update(self, s: BestState, inbox: Inbox) -> BestState:
        s = super().update(s, inbox)
        new = validation.with_validation_loss(self.engine, s.x, s.buffers)
        return replace(s, best=validation.better(self.engine, s.best, new))

    def personal(self, s: BestState) -> BestState:
        best, batches = s.best, self.engine.batches(0, Purpose.TUNE, epochs=self.epochs)
        opt_state = self.engine.opt_state(best["x"])
        fit = self.engine.fit(best["x"], validation.buffers_of(best), opt_state, batches)
        return replace(s, x=fit.x, buffers=fit.buffers)


class FineTunedProx(FineTuned, FedProx[BestState], group="personal"):
    """FedProx, fine-tuned by each peer."""

    epochs: int = option(10, EPOCHS, low=0)  # tuning tries `mu`
