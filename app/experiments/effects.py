"""Gains of single institutions, shrunk to those of their consortium: random effects.

The mean gain g_i of institution i over S_i divisions of its rows has the sampling variance

    v_i = max(s_i^2, c / n_i) (1 / S_i + r_i),   c = sum_i (S_i - 1) n_i s_i^2 / sum_i (S_i - 1),

with its variance s_i^2 over divisions, its n_i test rows, and r_i test rows per training row if
each seed divides the rows again (Nadeau and Bengio 2003), else 0. A few divisions agree by chance;
so s_i^2 is not taken to be smaller than the pooled variance of as many rows. True gains are

    gamma_i ~ 0.9 N(mu, tau^2) + 0.1 Cauchy(0, scale),   g_i ~ N(gamma_i, v_i),

with flat priors of mu and tau (Gelman, Bayesian Analysis 2006): the second part is an institution
that is like no other, which neither loses its own effect nor widens the others' distribution. The
posterior of gamma_i is integrated over mu, tau and gamma_i on grids. Where institutions differ it
is near g_i, and near the consortium's mean otherwise. Below three institutions nothing is shrunk.

Legend: n = institutions, k = pairs of mu and tau, l = values of gamma.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.app.experiments.paired import LEVEL, MIN_SEEDS
from coterie.app.runs.rundir import Floats

MIN_SHRUNK = 3
"""Number of institutions below which nothing is shrunk."""
_UNLIKE = 0.1
"""Prior probability that an institution is like no other."""
_MEANS, _SPREADS, _VALUES = 31, 21, 801
"""Values of mu, tau and gamma."""


def sampled(
    values: Sequence[Floats], ratio_n: Floats, rows_n: Floats, tests: int = 1
) -> tuple[Floats, Floats]:
    """Return g_i and v_i, (n,), of the gains of each institution, (seeds,); v_i NaN if untestable.

    v_i is widened so that normal intervals at the level of `tests` tests are those of Student's t.
    """
    from scipy.special import ndtri, stdtrit

    kept = [each_s[~np.isnan(each_s)] for each_s in values]
    mean_n = np.array([each_s.mean() if len(each_s) else np.nan for each_s in kept])
    seeds_n = np.array([len(each_s) for each_s in kept])
    can_n = seeds_n >= MIN_SEEDS
    degrees = int((seeds_n[can_n] - 1).sum())
    if not degrees:
        return mean_n, np.full(len(kept), np.nan)
    square_n = np.array([s.var(ddof=1) if can else 0 for s, can in zip(kept, can_n, strict=True)])
    pooled = ((seeds_n - 1) * rows_n * square_n)[can_n].sum() / degrees
    variance_n = np.maximum(square_n, pooled / rows_n) * (1 / np.maximum(seeds_n, 1) + ratio_n)
    upper = 1 - LEVEL / tests / 2
    wider = float(stdtrit(degrees, upper) / ndtri(upper)) ** 2
    return mean_n, np.where(can_n, wider * variance_n, np.nan)


def shrunk(mean_n: Floats, variance_n: Floats, scale: float, tests: int = 1) -> Floats:
    """Return the posterior mean and the ends of its interval of each institution, (n, 3)."""
    from scipy.special import ndtri

    known_n = np.isfinite(mean_n) & np.isfinite(variance_n)
    tail = LEVEL / tests / 2
    half_n = -ndtri(tail) * np.sqrt(variance_n)
    ends_n3 = np.stack([mean_n, mean_n - half_n, mean_n + half_n], axis=1)
    g_i, sd_i = mean_n[known_n], np.sqrt(variance_n[known_n])
    if len(g_i) < MIN_SHRUNK or not sd_i.all():
        return ends_n3
    gamma_l = np.linspace((g_i - 6 * sd_i).min(), (g_i + 6 * sd_i).max(), _VALUES)
    near, (first, third) = 3 * float(np.median(sd_i)), np.quantile(g_i, [0.25, 0.75]).tolist()
    low, high, step = first - near, third + near, float(gamma_l[1] - gamma_l[0])
    mu_t, tau_t = np.linspace(low, high, _MEANS), np.linspace(step, high - low, _SPREADS)
    mu_k, tau_k = (each.ravel() for each in np.meshgrid(mu_t, tau_t))
    alike_kl = _normal(gamma_l, mu_k[:, None], tau_k[:, None])
    unlike_l = np.sqrt(2 / np.pi) / (scale * (1 + (gamma_l / scale) ** 2))
    prior_kl = (1 - _UNLIKE) * alike_kl + _UNLIKE * unlike_l
    seen_il = _normal(g_i[:, None], gamma_l, np.maximum(sd_i, step)[:, None])
    log_ik = np.log(seen_il @ prior_kl.T)
    log_k = log_ik.sum(axis=0)
    others_ik = np.exp(log_k - log_k.max() - log_ik + log_ik.max(axis=1, keepdims=True))
    posterior_il = seen_il * (others_ik @ prior_kl)
    posterior_il /= posterior_il.sum(axis=1, keepdims=True)
    below_il = posterior_il.cumsum(axis=1)
    at = [np.interp([tail, 1 - tail], below_l, gamma_l) for below_l in below_il]
    ends_n3[known_n] = np.column_stack([posterior_il @ gamma_l, at])
    return ends_n3


def _normal(x: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Return the normal density times the square root of 2 pi."""
    return np.asarray(np.exp(-(((x - mean) / deviation) ** 2) / 2) / deviation)
