"""Mixture: predict with the weighted mean of all neighbours' predictions.

    p_i(y | x) = sum_j w_ij p_j(y | x),   w_i >= 0, sum_j w_ij = 1

The weights maximise the penalised likelihood of peer i's held-out rows R,

    L(w) = sum_{r in R} log sum_j w_j p_j(y_r | x_r) + a log w_i,

the posterior of a Dirichlet prior that counts the peer's own model as `prior` = a rows. L is
concave, and expectation maximisation never lowers it (Dempster, Laird, Rubin 1977):

    E: q_rj = w_j p_j(y_r | x_r) / sum_k w_k p_k(y_r | x_r)
    M: w_j = (sum_r q_rj + a [j = i]) / (|R| + a)

It is FedeRiCo's E-step (federico, equation 7) for models as they are: without gradients, so also
for trees. Held-out rows and the own model's predictions: `coterie.clients.parts.predictors`.
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
own model's predictions: `coterie.clients.parts.predictors`. Without other models, or without
held-out rows, w_ii = 1, which is local training.

Readings and deviations: the metric is the log loss; neither the paper's start from the best N
models nor its bagging of models. Likelihoods of numbers, texts and volumes are those of Mixture.
"""

from __future__ import annotations

import numpy as np

from coterie.clients.hints import Floats
from coterie.clients.parts.predictors import MembersState, Predictors
from coterie.clients.parts.validation import CHOOSES_MODELS, CHOOSES_WEIGHTS
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
