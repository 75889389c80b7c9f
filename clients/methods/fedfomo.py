"""FedFomo: steps towards the models that have a lower loss on a peer's validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, section 3. Symbols: theta_i `state.x`, w_ij `state.w`, p_ij
`state.affinity`, M `options.models`, epsilon `options.epsilon`. In a round each peer

1. trains on its own data and pulls M models x_j;
2. w_ij = max(0, v_ij), v_ij = (L_i(x_i) - L_i(x_j)) / |x_j - x_i|, L_i its validation loss; the
   weights are scaled to sum to 1, and x_i <- x_i + sum_j w_ij (x_j - x_i); if no model is better,
   x_i does not change;
3. adds the v_ij, also the negative ones, to its affinities. For each of the M models of the next
   round it picks, with probability epsilon, a random peer, otherwise the one with the largest
   affinity among those not picked yet, ties at random.

Readings and deviations: x_i is the model after local training (`baseline = "trained"`). The paper
compares with the model before it, `"previous"`: the peer's trained model is then one of the
candidates, and dropped if it is worse. The values v_ij of a round are divided by the sum of their
absolute values before they are added (the authors' code divides by the absolute value of their sum,
which may be near 0, so that one round outweighs all others); a peer that was picked but sent no
model drops to the lowest affinity. epsilon falls by `epsilon-decay` per round, as in the code.
Batch-norm buffers stay personal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.exploring import epsilon_greedy
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Options of FedFomo.

    Attributes
    ----------
    models : int
        Number of models that each peer pulls per round, M; 0 for those of all neighbours.
    epsilon : float
        Probability of pulling a random model instead of the most promising one, in round 1.
    epsilon_decay : float
        Decrease of epsilon per round.
    baseline : {"trained", "previous"}
        Model that the others are compared with: the peer's model after ("trained") or before
        ("previous") local training.
    """

    models: Annotated[int, Range(0)] = 5
    epsilon: Annotated[float, Range(0, 1)] = 0.3
    epsilon_decay: Annotated[float, Range(0)] = 0.05
    baseline: Literal["trained", "previous"] = "trained"
    grid: ClassVar[Grid] = {"epsilon": (0.1, 0.3, 0.6)}
    validates: ClassVar[bool] = True


@dataclass(frozen=True)
class FedFomoState(State):
    """State of FedFomo.

    Attributes
    ----------
    previous : Tensor, (P, d)
        Models before local training.
    affinity : ndarray, (P, n)
        Accumulated values of every peer's models.
    w : ndarray, (P, n)
        Weights of the last update; the diagonal is the weight of x_i.
    """

    previous: Tensor
    affinity: Floats
    w: Floats


class FedFomo(LocalTraining[FedFomoState]):
    """FedFomo: step towards the models with lower validation loss."""

    def init(self) -> FedFomoState:
        start = self.start()
        return FedFomoState(
            **vars(start), previous=start.x, affinity=np.zeros_like(self.eye()), w=self.eye()
        )

    def wants(self, state: FedFomoState, round_: int) -> Ints:
        return self.pairs(self._wanted(state, round_))

    def offer(self, state: FedFomoState, round_: int) -> tuple[FedFomoState, Mapping[str, Tensor]]:
        return super().offer(replace(state, previous=state.x), round_)

    def update(
        self, state: FedFomoState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedFomoState:
        engine, eye = self.engine, self.eye()
        base_pd = state.x if self.options.baseline == "trained" else state.previous
        # Each peer also evaluates its own trained model.
        judges = np.append(self.local(offers.recipients), np.arange(len(base_pd)))
        authors = np.append(offers.senders, engine.peers)
        x_ed = offers["x"][np.append(offers.rows, np.searchsorted(offers.authors, engine.peers))]
        buffers = state.buffers_at(judges)
        losses_e = engine.losses(x_ed, buffers, "validation", judges).losses.cpu().numpy()
        base_p = engine.losses(base_pd, state.buffers, "validation").losses.cpu().numpy()
        away_ed = x_ed - base_pd[judges]
        distance_e = np.sqrt(engine.inner(away_ed, away_ed).cpu().numpy())
        value_pn = np.zeros_like(eye)
        value_pn[judges, authors] = first_order(base_p[judges], losses_e, distance_e)

        better_pn = np.maximum(value_pn, 0.0)
        total_p1 = better_pn.sum(axis=1, keepdims=True)
        w_pn = np.where(total_p1 > 0, better_pn / np.where(total_p1 > 0, total_p1, 1.0), eye)
        fresh_pn = w_pn * self.freshness(offers)
        w_pn = fresh_pn + eye * (w_pn - fresh_pn).sum(axis=1, keepdims=True)  # a shorter step
        mixed_pd = engine.mix(w_pn[:, offers.authors], offers["x"])
        x_pd = mixed_pd.where(engine.tensor(total_p1) > 0, base_pd)

        size_p1 = np.abs(value_pn).sum(axis=1, keepdims=True)
        affinity = state.affinity + value_pn / np.where(size_p1 > 0, size_p1, 1.0)
        silent = self._wanted(state, round_) & ~self.present(offers)
        affinity = np.where(silent, affinity.min(axis=1, keepdims=True), affinity)
        return replace(state, x=x_pd, affinity=affinity, w=w_pn)

    def weights(self, state: FedFomoState) -> Floats:
        return state.w

    def _wanted(self, state: FedFomoState, round_: int) -> Bools:
        """Return a mask (P, n) of the models that each peer pulls in a round."""
        n, options = self.engine.n, self.options
        epsilon = options.epsilon - options.epsilon_decay * (round_ - 1)
        wanted = np.zeros(state.affinity.shape, dtype=np.bool_)
        for p, i in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(i), round_, Purpose.CHOICE)
            near = self.engine.topology[i]
            best, shuffled = np.lexsort((g.random(n), -state.affinity[p])), g.permutation(n)
            slots = min(options.models or n, int(near.sum()))
            explores = g.random(n - 1)[:slots] < epsilon
            wanted[p, epsilon_greedy(explores, shuffled[near[shuffled]], best[near[best]])] = True
        return wanted


def first_order(base: Floats, losses: Floats, distances: Floats) -> Floats:
    """Return the decrease of the loss per unit step towards each model; 0 where undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (base - losses) / distances
    return np.where(np.isfinite(value), value, 0.0)
