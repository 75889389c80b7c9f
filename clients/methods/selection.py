"""Selection: predict with an ensemble chosen greedily on held-out rows.

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
models nor its bagging of models. Likelihoods of numbers, texts and volumes are those of
`coterie.clients.methods.mixture`.
"""

from __future__ import annotations

import numpy as np

from coterie.clients.hints import Floats
from coterie.clients.parts.predictors import MembersState, Predictors
from coterie.clients.parts.validation import CHOOSES_MODELS
from coterie.ranges import option


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
