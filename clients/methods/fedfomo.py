"""FedFomo: steps towards the models that have a lower loss on a peer's validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized Federated Learning with First Order Model
Optimization", ICLR 2021, section 3. Symbols: theta_i `state.x`, w_ij `state.w`, p_ij
`state.affinity`, M `models`, epsilon `epsilon`. In a round each peer

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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Weighted, epsilon_greedy
from coterie.ranges import option
from coterie.strategies.plans import Wanted


@dataclass(frozen=True)
class FedFomoState(Weighted):
    """State of FedFomo; the diagonal of `w` is the weight of x_i."""

    previous: Tensor  # models before local training, (P, d)
    affinity: Floats  # accumulated values of every peer's models, (P, n)


class FedFomo(
    LocalTraining[FedFomoState], strategy=Wanted, group="unknown", learns_graph=True,
    validates=True, exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Adds models that lower the loss on held-out data."""

    models: int = option(
        5,
        "Number of models that each peer pulls per round, M; 0 for those of all neighbours.",
        low=0,
    )
    epsilon: float = option(
        0.3,
        "Probability of pulling a random model instead of the most promising one, in round 1.",
        low=0, high=1, grid=(0.1, 0.3, 0.6),
    )  # fmt: skip
    epsilon_decay: float = option(0.05, "Decrease of epsilon per round.", low=0)
    baseline: Literal["trained", "previous"] = option(
        "trained",
        'Model that the others are compared with: the peer\'s model after ("trained") or before '
        '("previous") local training.',
    )

    def init(self) -> FedFomoState:
        start = self.start()
        return self.begin(start, previous=start.x, affinity=np.zeros_like(self.eye()))

    def wants(self, s: FedFomoState, t: int) -> Bools:
        n, epsilon = self.engine.n, self.epsilon - self.epsilon_decay * (t - 1)
        wanted = np.zeros(s.affinity.shape, dtype=np.bool_)
        for p, g in enumerate(self.draws(t)):
            near = self.near[p]
            best, shuffled = np.lexsort((g.random(n), -s.affinity[p])), g.permutation(n)
            slots = min(self.models or n, int(near.sum()))
            explores = g.random(n - 1)[:slots] < epsilon
            wanted[p, epsilon_greedy(explores, shuffled[near[shuffled]], best[near[best]])] = True
        return wanted

    def offer(self, s: FedFomoState, t: int) -> tuple[FedFomoState, Mapping[str, Tensor]]:
        return super().offer(replace(s, previous=s.x), t)

    def update(self, s: FedFomoState, inbox: Inbox) -> FedFomoState:
        engine, eye = self.engine, self.eye()
        base_pd = s.x if self.baseline == "trained" else s.previous
        value_pn = self.values(s, base_pd, inbox)
        better_pn = np.maximum(value_pn, 0.0)
        total_p1 = better_pn.sum(axis=1, keepdims=True)
        w_pn = np.where(total_p1 > 0, better_pn / np.where(total_p1 > 0, total_p1, 1.0), eye)
        fresh_pn = w_pn * inbox.discount
        w_pn = fresh_pn + eye * (w_pn - fresh_pn).sum(axis=1, keepdims=True)  # a shorter step
        x_pd = inbox.mix("x", w_pn).where(engine.tensor(total_p1) > 0, base_pd)
        size_p1 = np.abs(value_pn).sum(axis=1, keepdims=True)
        affinity = s.affinity + value_pn / np.where(size_p1 > 0, size_p1, 1.0)
        silent = self.wants(s, inbox.round) & ~inbox.present
        affinity = np.where(silent, affinity.min(axis=1, keepdims=True), affinity)
        return replace(s, x=x_pd, affinity=affinity, w=w_pn)

    def values(self, s: FedFomoState, base_pd: Tensor, inbox: Inbox) -> Floats:
        """Return v (P, n) of the received models and the peer's trained one; 0 for the others."""
        losses_pn = inbox.losses(s, "validation", own=True)
        base_p = self.engine.losses(base_pd, s.buffers, "validation").losses.cpu().numpy()
        apart_pn = np.sqrt(inbox.squared_distances("x", base_pd, own=True))
        return first_order(base_p[:, None], losses_pn, apart_pn)


def first_order(base: Floats, losses: Floats, distances: Floats) -> Floats:
    """Return the decrease of the loss per unit step towards each model; 0 where undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (base - losses) / distances
    return np.where(np.isfinite(value), value, 0.0)
