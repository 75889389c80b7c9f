"""Stacking: predict with a ridge regression on all neighbours' scores.

Wolpert, "Stacked Generalization", Neural Networks 1992. With z_j(x) the scores of model j (logits,
or values), peer i predicts with the scores

    z(x) = b + sum_j v_j z_j(x),

a number v_j per model and an offset b_k per score. They minimise, on its held-out rows R,

    sum_{r in R} loss(z(x_r), y_r) + ridge / 2 (|v - e_i|^2 + |b|^2),

where b_k is in units of the peer's own error if numbers are predicted, so that an infinite `ridge`
is the peer's own model, and so is a peer without held-out rows or without other models, and targets
and models in other units give the same predictions. The scores of others are clipped to their range
on R (`coterie.clients.engine.limits`), which changes no prediction on R. The objective is convex:
Newton's method with halved steps finds its minimum (`coterie.clients.engine.stacked`). Held-out
rows and the own model's scores: `coterie.clients.parts.predictors`.

Readings: Wolpert's level 1 as a penalised linear model of the scores, which keeps what the models
know about the sizes of their scores; the peer's own model needs no penalty for being used. For
numbers the loss is divided by twice the mean squared error of the peer's own model. The map has
|v_j| / sum |v|.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coterie.clients.hints import Floats
from coterie.clients.mixture import Mixture
from coterie.clients.parts.ensemble import EMPTY
from coterie.clients.parts.predictors import HeldOut, MembersState, Predictors, scale
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.datasets.problem import Problem
from coterie.ranges import option


@dataclass(frozen=True)
class StackingState(MembersState):
    """State of stacking."""

    v: Floats  # coefficients of the peer's own model and of those in the slots, (P, 1 + K)
    b: Floats  # offsets of the scores, (P, k)


class Stacking(Predictors[StackingState], group="unknown", exposes=CHOOSES_WEIGHTS):
    """Adds the scores of all models, with coefficients by ridge regression; any model."""

    ridge: float = option(
        1.0, "Strength of the penalty, which is at the peer's own model.", above=0,
        grid=(0.3, 1.0, 10.0),
    )  # fmt: skip

    @property
    def limits_scores(self) -> bool:
        return True

    def check_data(self, problem: Problem) -> None:
        """Reject problems whose models have no scores."""
        if problem.task in ("quadratic", "segmentation"):
            raise ValueError(
                f"adds the scores of models along the last axis, which {problem.task} does not have"
            )

    def extra(self) -> Mapping[str, Floats]:
        hosted = len(self.engine.peers)
        degree = int(self.engine.topology.sum(axis=1).max())
        v = np.zeros((hosted, 1 + degree))
        v[:, 0] = 1
        return {"v": v, "b": np.zeros((hosted, self.engine.outputs))}

    def combined(self, s: StackingState, p: int, held_out: HeldOut) -> StackingState:
        v, b, w = s.v.copy(), s.b.copy(), s.w.copy()
        v[p], b[p], w[p] = 0, 0, 0
        used = np.append(0, 1 + held_out.slots)
        if len(used) == 1 or not len(held_out.targets()):
            v[p, 0] = w[p, self.engine.peers[p]] = 1
            return replace(s, v=v, b=b, w=w)
        outputs, of_own = held_out.outputs(), partial(scale, self.engine)
        v[p, used], b[p] = self.engine.ridge(outputs, held_out.targets(), self.ridge, of_own)
        w[p, held_out.authors] = np.abs(v[p, used]) / (np.abs(v[p]).sum() or 1)
        return self.limited(replace(s, v=v, b=b, w=w), p, held_out, outputs)

    def mixture(self, s: StackingState) -> Mixture | None:
        if not s.authors.shape[1]:
            return None
        x_pmd, v_pm = self.stacked(s), s.v.copy()
        v_pm[:, 1:][s.authors == EMPTY] = 0
        x_pmd[v_pm == 0] = 0.0
        members, offset = v_pm.shape[1], self.engine.tensor(s.b)
        at_pm = np.broadcast_to(np.arange(members), v_pm.shape)
        return Mixture(
            self.engine.tensor(v_pm), x_pmd, self.repeated(s, members), offset,
            *self.bounds(s, at_pm),
        )  # fmt: skip
