"""Mixture: predict with the weighted mean of all neighbours' predictions.

    p_i(y | x) = sum_j w_ij p_j(y | x),   w_i >= 0, sum_j w_ij = 1

The weights maximise the penalised likelihood of peer i's held-out rows R,

    L(w) = sum_{r in R} log sum_j w_j p_j(y_r | x_r) + a log w_i,

the posterior of a Dirichlet prior that counts the peer's own model as `prior` = a rows. L is
concave, and expectation maximisation never lowers it (Dempster, Laird, Rubin 1977):

    E: q_rj = w_j p_j(y_r | x_r) / sum_k w_k p_k(y_r | x_r)
    M: w_j = (sum_r q_rj + a [j = i]) / (|R| + a)

It is FedeRiCo's E-step (federico, equation 7) for models as they are: without gradients, so also
for trees. Held-out rows and the own model's predictions: `coterie.clients.parts.ensemble`.
Without other models w_ii = 1, which is local training; between equal models the weights do not
matter. An infinite prior is local training, 0 the maximum of the likelihood.

Readings: for numbers p_j is normal around the model's value, with the variance of the peer's own
errors; for texts and volumes exp(-loss) of an example. EM begins at equal weights and ends when an
iteration changes no weight by more than 1e-9, at most after 1,000.

Selection: predict with an ensemble chosen greedily on held-out rows.

Caruana, Niculescu-Mizil, Crew, Ksikes, "Ensemble Selection from Libraries of Models", ICML 2004:
forward selection with replacement. From an empty ensemble, peer i adds `draws` times the model that
gives the smallest log loss on its held-out rows R,

    j_t = argmin_j -sum_{r in R} log( (sum_{s < t} p_{j_s}(y_r | x_r) + p_j(y_r | x_r)) / t ),

and predicts with the mean p_i(y | x) = sum_j w_ij p_j(y | x), w_ij the share of draws that added
j. With a `budget`, at most so many other peers are in it, as in DPFL.

Ties are for the peer's own model, then for the peer with the smaller number. Held-out rows and the
own model's predictions: `coterie.clients.parts.ensemble`. Without other models, or without
held-out rows, w_ii = 1, which is local training.

Readings and deviations: the metric is the log loss; neither the paper's start from the best N
models nor its bagging of models. Likelihoods of numbers, texts and volumes are those of Mixture.

Stacking: predict with a ridge regression on all neighbours' scores.

Wolpert, "Stacked Generalization", Neural Networks 1992. With z_j(x) the scores of model j (logits,
or values), peer i predicts with the scores

    z(x) = b + sum_j v_j z_j(x),

a number v_j per model and an offset b_k per score. They minimise, on its held-out rows R,

    sum_{r in R} loss(z(x_r), y_r) + ridge / 2 (|v - e_i|^2 + |b|^2),

where b_k is in units of the peer's own error if numbers are predicted, so that an infinite `ridge`
is the peer's own model, and so is a peer without held-out rows or without other models, and targets
and models in other units give the same predictions. The scores of others are clipped to their range
on R (`coterie.clients.engine.tasks`), which changes no prediction on R. The objective is convex:
Newton's method with halved steps finds its minimum (`coterie.clients.engine.linear`). Held-out
rows and the own model's scores: `coterie.clients.parts.ensemble`.

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
from coterie.clients.mixture import Mixture as Ensemble
from coterie.clients.parts.ensemble import EMPTY, HeldOut, MembersState, Predictors, scale
from coterie.clients.parts.validation import CHOOSES_MODELS, CHOOSES_WEIGHTS
from coterie.datasets.problem import Problem
from coterie.ranges import option

_ITERATIONS, _CHANGE = 1000, 1e-9


class Mixture(Predictors[MembersState], group="unknown", exposes=CHOOSES_WEIGHTS):
    """Predicts with the mixture of all models that explains its held-out rows; any model."""

    prior: float = option(
        5.0, "Number of rows that the peer's own model counts for in the prior.", low=0,
        grid=(1.0, 5.0, 20.0),
    )  # fmt: skip

    def chosen(self, losses_mr: Floats) -> Floats:
        w_m = np.full(len(losses_mr), 1 / len(losses_mr))
        if not losses_mr.size:
            return w_m if self.prior == 0 else np.arange(len(losses_mr)) == 0.0
        for _ in range(_ITERATIONS):
            before, w_m = w_m, em_step(w_m, losses_mr, self.prior)
            if np.abs(w_m - before).max() <= _CHANGE:
                break
        return w_m


def em_step(w_m: Floats, losses_mr: Floats, prior: float) -> Floats:
    """Return the weights after an E- and an M-step; the peer's own model is the first."""
    shares_mr = w_m[:, None] * np.exp(losses_mr.min(axis=0) - losses_mr)
    shares_mr /= shares_mr.sum(axis=0)
    counts_m = shares_mr.sum(axis=1)
    counts_m[0] += prior
    return np.asarray(counts_m / counts_m.sum())


class Selection(Predictors[MembersState], group="unknown", exposes=CHOOSES_MODELS):
    """Predicts with an ensemble chosen greedily on its held-out rows; any model."""

    draws_: int = option(12, "Number of models that are added, with repetitions.", low=1)
    budget: int = option(0, "Maximum number of other peers in the ensemble; 0 for all.", low=0)

    def chosen(self, losses_mr: Floats) -> Floats:
        members = len(losses_mr)
        likelihood_mr = np.exp(losses_mr.min(axis=0) - losses_mr)
        added_m, sum_r = np.zeros(members), np.zeros(losses_mr.shape[1])
        for _ in range(self.draws_ if losses_mr.size else 0):
            with np.errstate(divide="ignore"):
                loss_m = -np.log(sum_r + likelihood_mr).sum(axis=1)
            if self.budget and (added_m[1:] > 0).sum() == self.budget:
                loss_m[1:][added_m[1:] == 0] = np.inf
            best = int(loss_m.argmin())
            added_m[best] += 1
            sum_r += likelihood_mr[best]
        if not added_m.any():
            added_m[0] = 1
        return np.asarray(added_m / added_m.sum())


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

    def mixture(self, s: StackingState) -> Ensemble | None:
        if not s.authors.shape[1]:
            return None
        x_pmd, v_pm = self.stacked(s), s.v.copy()
        v_pm[:, 1:][s.authors == EMPTY] = 0
        x_pmd[v_pm == 0] = 0.0
        members, offset = v_pm.shape[1], self.engine.tensor(s.b)
        at_pm = np.broadcast_to(np.arange(members), v_pm.shape)
        return Ensemble(
            self.engine.tensor(v_pm), x_pmd, s.buffers_of_members(members), offset,
            *self.bounds(s, at_pm),
        )  # fmt: skip
