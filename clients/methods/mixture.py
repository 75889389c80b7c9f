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
"""

from __future__ import annotations

import numpy as np

from coterie.clients.hints import Floats
from coterie.clients.parts.predictors import MembersState, Predictors
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
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
