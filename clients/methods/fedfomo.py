"""FedFomo: a peer adds to its model what would have lowered its loss on held-out data.

Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, section 3. Symbols: theta_i `state.x`, w_ij `state.w`, p_ij
`state.affinity`, M `options.models`, epsilon `options.epsilon`. In a round each peer

1. trains on its own data and pulls M models x_j;
2. w_ij = max(0, (L_i(x_i) - L_i(x_j)) / |x_j - x_i|), L_i its validation loss; these are scaled to
   sum to 1, and x_i <- x_i + sum_j w_ij (x_j - x_i); if no model is better, x_i stays;
3. adds what was found, bad models with their negative values, to its affinities. For each of the M
   models of the next round it takes, with probability epsilon, a peer at random, otherwise the one
   with the largest affinity among those not taken yet, ties at random.

Readings and deviations: x_i is the model after the local training (`baseline = "trained"`). The
paper measures against the model before it, `"previous"`: the own trained model is then one of those
that are weighed, and one that is worse is given up. Before they are added, a round's values are
divided by the sum of their sizes (the code divides by the size of their sum, which may be near 0,
so that one round outweighs all others); a peer that was wanted and does not come sinks to the
lowest affinity. epsilon falls by `epsilon-decay` a round, as in the code. Batch-norm buffers stay
personal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.exploring import epsilon_greedy
from coterie.clients.rule import Floats, Grid, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """FedFomo's knobs.

    Attributes
    ----------
    models : M, neighbours' models that each peer pulls in a round; 0 for all of them.
    epsilon : probability of pulling a random model instead of a promising one, in round 1.
    epsilon_decay : what is taken off epsilon in every later round.
    baseline : the own model that others have to beat, "trained" or "previous".
    """

    models: int = 5
    epsilon: float = 0.3
    epsilon_decay: float = 0.05
    baseline: Literal["trained", "previous"] = "trained"
    grid: ClassVar[Grid] = {"epsilon": (0.1, 0.3, 0.6)}
    validates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.models < 0:
            raise ValueError("models must be 0 (all) or more")
        if not 0 <= self.epsilon <= 1:
            raise ValueError("epsilon must lie in [0, 1]")
        if self.epsilon_decay < 0:
            raise ValueError("epsilon-decay must not be negative")


@dataclass(frozen=True)
class FedFomoState(State):
    """What a peer keeps beside its model.

    Attributes
    ----------
    previous : (P, d) the model before the local training.
    affinity : (P, n) how well everybody's models did so far.
    w : (P, n) weights of the last update; the self weight is what x_i kept.
    """

    previous: Tensor
    affinity: Floats
    w: Floats


class FedFomo(LocalTraining[FedFomoState]):
    """Steps towards the models that do better on held-out data."""

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
        others, peers = self.local(offers.recipients), np.arange(len(base_pd))
        of = np.append(others, peers)  # everybody weighs its own model too
        authors = np.append(offers.senders, engine.peers)
        x_ed = offers["x"][np.append(offers.rows, np.searchsorted(offers.authors, engine.peers))]
        losses_e = engine.losses(x_ed, state.buffers_at(of), "validation", of).losses.cpu().numpy()
        base_p = engine.losses(base_pd, state.buffers, "validation").losses.cpu().numpy()
        away_ed = x_ed - base_pd[of]
        away_e = np.sqrt(engine.inner(away_ed, away_ed).cpu().numpy())
        value_pn = np.zeros_like(eye)
        value_pn[of, authors] = first_order(base_p[of], losses_e, away_e)

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
        """(P, n) whose models each peer pulls in a round."""
        n, options = self.engine.n, self.options
        epsilon = options.epsilon - options.epsilon_decay * (round_ - 1)
        wanted = np.zeros(state.affinity.shape, dtype=np.bool_)
        for p, i in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(i), round_, Purpose.CHOICE)
            near = self.engine.topology[i]
            best, chance = np.lexsort((g.random(n), -state.affinity[p])), g.permutation(n)
            places = min(options.models or n, int(near.sum()))
            explores = g.random(n - 1)[:places] < epsilon
            wanted[p, epsilon_greedy(explores, chance[near[chance]], best[near[best]])] = True
        return wanted


def first_order(own: Floats, others: Floats, distances: Floats) -> Floats:
    """How much loss a step of length 1 towards each model is worth; 0 where it makes no sense."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (own - others) / distances
    return np.where(np.isfinite(value), value, 0.0)
