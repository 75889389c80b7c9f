"""Random effects from letters: groups of linear models, by expectation maximisation.

A letter of peer i is a quadratic log likelihood of its parameters, -1/2 x' H_i x + b_i' x. With the
prior

    x_i ~ sum_k pi_k N(mu_k, T) + pi_0 N(0, s^2 I),   mu_k ~ N(0, 10 I),   k = 1 ... K,

T diagonal, the posterior of x_i in component k with mean m and variance V (T or s^2 I) is normal,
with covariance C_i = (H_i + V^-1)^-1 and mean C_i (b_i + V^-1 m). The background, component 0, is
for a peer that is like nobody. Intercepts are free: their variance is 25 in each component and not
estimated, so that prevalences may differ. H_i is never inverted alone: it is singular if a peer has
one class only.

The M-step of T integrates the group's mean out: it is N(m_k, U_k) given the letters, with
U_k = (0.1 I + sum_i r_ik (H_i^-1 + T)^-1)^-1, and x_i - mu_k has the mean square

    (E[x_i] - m_k)^2 + diag(C_i + (A_i - I) U_k (A_i - I)'),   A_i = C_i T^-1.

So T is the restricted maximum likelihood estimate (Laird and Ware, Biometrics 1982).

The number of groups K from 0 to min(n / 2, 4) has the largest log evidence minus BIC's penalty,
(number of parameters) log n / 2; above 1, K grows as long as that does. Of several starts the best
after 25 iterations goes on (Biernacki et al., Computational Statistics & Data Analysis 2003). With
K = 0 each peer has the posterior under N(0, s^2 I), s^2 of its own letter: no other one moves it.
Every step is a function of the letters: peers that have the same letters compute the same groups.

Legend: n = letters, d = parameters, k = groups, c = components (groups, then the background).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.special import logsumexp, softmax

from coterie.clients.letters import Bools, Floats

FREE = 25.0
"""Prior variance of an intercept."""
ALONE = 2.0
"""Prior variance of a slope for a first letter, and for the estimate at home."""
_GROUP_MEAN = 0.1
"""Prior precision of the mean of a group."""
_FLOOR = 1e-4
"""Minimum variance of a slope within a group."""
_BACKGROUND = (0.05, 10.0)
"""Range of the background's variance."""
_MAX_GROUPS = 4
_STARTS, _SHORT = 5, 25
"""Starts, and iterations of each before the best of them goes on."""
_ITERATIONS, _CHANGE = 300, 1e-6
"""Iterations at most; change of the log likelihood that ends them."""


class _Fit(NamedTuple):
    """Expectation maximisation with K groups, at its end."""

    shares: Floats  # probability of each component, (n, K + 1)
    spread: Floats  # T of the last step, (d,)
    background: float  # s^2 of the last step
    means: Floats  # (K, d)
    mean_covariances: Floats  # (K, d, d)
    within: _Posterior
    beyond: _Posterior
    evidence: float


@dataclass(frozen=True)
class Effects:
    """Estimates of all peers from their letters."""

    estimates: Floats  # posterior means of the parameters, (n, d)
    covariances: Floats  # with the uncertainty of the groups' means, (n, d, d)
    membership: Floats  # probability of each group, and last of the background, (n, K + 1)
    means: Floats  # of the groups, (K, d)
    mean_covariances: Floats  # (K, d, d)
    spread: Floats  # variance of a parameter within a group, the diagonal of T, (d,)
    background: float  # variance s^2 of a slope in the background
    influence: Floats  # share of peer j's letter in the slopes of peer i, (n, n); rows sum to 1
    evidences: tuple[float, ...]
    """Log evidence less the penalty, of each number of groups that was tried or asked for."""

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.means)


def estimated(b_nd: Floats, h_ndd: Floats, is_free_d: Bools, groups: int | None = None) -> Effects:
    """Estimate the parameters of all peers from the gradients at 0 and curvatures of their letters.

    `is_free_d` masks the intercepts; without `groups`, their number is chosen by evidence.
    """
    most = min(len(b_nd) // 2, _MAX_GROUPS)
    counts = range(most + 1) if groups is None else [min(groups, len(b_nd))]
    fits = list[_Fit]()
    for count in counts:
        fits.append(_fitted(b_nd, h_ndd, is_free_d, count))
        if len(fits) > 2 and fits[-1].evidence <= fits[-2].evidence:
            break
    best = _ordered(max(fits, key=lambda each: each.evidence))  # of equals, with fewer groups
    has_groups = len(best.means) > 0
    estimates_nd, covariances_ndd, influence_nn = (
        _shrunk(b_nd, is_free_d, best) if has_groups else _alone(b_nd, h_ndd, is_free_d)
    )
    return Effects(
        estimates_nd, covariances_ndd, best.shares, best.means, best.mean_covariances, best.spread,
        best.background, influence_nn, tuple(each.evidence for each in fits),
    )  # fmt: skip


def _ordered(fit: _Fit) -> _Fit:
    """Number the groups by their first peers, so that starts do not decide their names."""
    likely_n, groups = fit.shares.argmax(axis=1), len(fit.means)
    order = np.argsort([[*likely_n, k].index(k) for k in range(groups)], kind="stable").astype(int)
    return fit._replace(
        shares=fit.shares[:, [*order, groups]], means=fit.means[order],
        mean_covariances=fit.mean_covariances[order],
    )  # fmt: skip


def alone(b_nd: Floats, h_ndd: Floats, is_free_d: Bools) -> Floats:
    """Return each peer's estimate from its own letter under the weak prior, (n, d)."""
    posterior = _Posterior(h_ndd, np.where(is_free_d, FREE, ALONE))
    return posterior.mean(b_nd, np.zeros((1, b_nd.shape[1])))[:, 0]


def _by_itself(b_1d: Floats, h_1dd: Floats, is_free_d: Bools) -> _Posterior:
    """Return the posterior of one letter under N(0, s^2 I), s^2 of this letter alone."""
    variance, nothing_1d = 1.0, np.zeros_like(b_1d)
    for _ in range(_ITERATIONS):
        posterior = _Posterior(h_1dd, np.where(is_free_d, FREE, variance))
        squares_d = posterior.mean(b_1d, nothing_1d)[0, 0] ** 2 + posterior.covariance[0].diagonal()
        before = variance
        variance = _background(squares_d[~is_free_d].mean(keepdims=True), np.ones(1))
        if abs(variance - before) < _CHANGE:
            break
    return posterior


def _background(squares_n: Floats, shares_n: Floats) -> float:
    """Return s^2, the mean squared slope by share, with 0.3 letters of 1 as prior."""
    variance = (0.3 + shares_n @ squares_n) / (0.3 + shares_n.sum())
    return float(np.clip(variance, *_BACKGROUND))


class _Posterior:
    """Posteriors of all letters under a diagonal prior variance."""

    def __init__(self, h_ndd: Floats, variance_d: Floats) -> None:
        self.variance = variance_d
        self.covariance, log_n = _inverses(h_ndd + np.diag(1 / variance_d))  # (n, d, d)
        self._volume = -log_n - np.log(variance_d).sum()

    def mean(self, b_nd: Floats, prior_cd: Floats) -> Floats:
        """Return the posterior means for each prior mean, (n, c, d)."""
        q_ncd = b_nd[:, None] + prior_cd / self.variance
        return np.asarray(np.einsum("nde,nce->ncd", self.covariance, q_ncd))

    def evidence(self, b_nd: Floats, prior_cd: Floats) -> Floats:
        """Return the log evidence of each letter for each prior mean, (n, c)."""
        q_ncd = b_nd[:, None] + prior_cd / self.variance
        fit_nc = (q_ncd * self.mean(b_nd, prior_cd)).sum(axis=2)
        size_c = (prior_cd**2 / self.variance).sum(axis=1)
        return np.asarray(0.5 * (fit_nc - size_c + self._volume[:, None]))

    def precision(self) -> Floats:
        """Return the precision of each letter about the prior mean, (S_i + V)^-1, (n, d, d)."""
        outer_dd = self.variance[:, None] * self.variance
        return np.asarray(np.diag(1 / self.variance) - self.covariance / outer_dd)


def _fitted(b_nd: Floats, h_ndd: Floats, is_free_d: Bools, groups: int) -> _Fit:
    """Return the fit with the largest evidence over the starts."""
    data, spread_d = (b_nd, h_ndd, is_free_d), np.where(is_free_d, FREE, 0.1)
    starts = _starts(b_nd, h_ndd, spread_d, groups)
    fits = [_maximised(*data, each, spread_d, 1.0, _SHORT) for each in starts]
    best = max(fits, key=lambda each: each.evidence)
    return _maximised(*data, best.shares, best.spread, best.background, _ITERATIONS)


def _starts(b_nd: Floats, h_ndd: Floats, spread_d: Floats, groups: int) -> Iterator[Floats]:
    """Yield memberships (n, K + 1) to begin with: letters far from each other are the groups.

    The first ones range from the most central to the farthest, so their order does not matter.
    """
    n, d = b_nd.shape
    if groups == 0:
        yield np.ones((n, 1))
        return
    if groups == 1:
        yield np.array([[1.0, 0.1]] * n) / 1.1
        return
    own = _Posterior(h_ndd, np.where(spread_d == FREE, FREE, 1.0))
    centres_nd = own.mean(b_nd, np.zeros((1, d)))[:, 0]
    near = _Posterior(h_ndd, spread_d).evidence(b_nd, centres_nd)  # (letters, centres)
    near -= own.evidence(b_nd, np.zeros((1, d)))
    order = np.argsort(-near.sum(axis=0), kind="stable")
    for first in order[np.unique(np.linspace(0, n - 1, min(n, _STARTS)).round().astype(int))]:
        chosen = [int(first)]
        while len(chosen) < groups:
            best_n = near[:, chosen].max(axis=1)
            best_n[chosen] = np.inf
            chosen.append(int(best_n.argmin()))
        r_nc = np.full((n, groups + 1), 0.1 / groups)
        r_nc[np.arange(n), near[:, chosen].argmax(axis=1)] = 1
        yield r_nc / r_nc.sum(axis=1, keepdims=True)


def _maximised(
    b_nd: Floats, h_ndd: Floats, is_free_d: Bools, r_nc: Floats, spread_d: Floats,
    background: float, iterations: int,
) -> _Fit:  # fmt: skip
    """Expectation maximisation from given memberships."""
    (n, d), groups = b_nd.shape, r_nc.shape[1] - 1
    nothing_1d, before = np.zeros((1, d)), -np.inf
    for _ in range(iterations):
        used = spread_d, background
        share_c = (r_nc.sum(axis=0) + 0.5) / (n + 0.5 * (groups + 1))
        within = _Posterior(h_ndd, spread_d)
        beyond = _Posterior(h_ndd, np.where(is_free_d, FREE, background))
        pull_nd = within.mean(b_nd, nothing_1d)[:, 0] / spread_d
        unsure_kdd, _ = _inverses(
            np.eye(d) * _GROUP_MEAN + np.tensordot(r_nc[:, :groups].T, within.precision(), 1)
        )
        means_kd = np.einsum("kde,kn,ne->kd", unsure_kdd, r_nc[:, :groups].T, pull_nd)
        log_nc = np.log(share_c) + np.concatenate(
            [within.evidence(b_nd, means_kd), beyond.evidence(b_nd, nothing_1d)], axis=1
        )
        total = float(logsumexp(log_nc, axis=1).sum())
        r_nc = softmax(log_nc, axis=1)
        x_nkd, x_nd = within.mean(b_nd, means_kd), beyond.mean(b_nd, nothing_1d)[:, 0]
        squares_nkd = (x_nkd - means_kd) ** 2 + _diagonals(within.covariance)[:, None]
        apart_ndd = within.covariance / spread_d - np.eye(d)
        squares_nkd += np.einsum("nkde,nde->nkd", apart_ndd[:, None] @ unsure_kdd, apart_ndd)
        spread_d = 1e-3 + np.einsum("nk,nkd->d", r_nc[:, :groups], squares_nkd)
        spread_d = np.maximum(spread_d / (r_nc[:, :groups].sum() + 1e-2), _FLOOR)
        spread_d = np.where(is_free_d, FREE, spread_d)
        far_n = (x_nd**2 + _diagonals(beyond.covariance))[:, ~is_free_d].mean(axis=1)
        background = _background(far_n, r_nc[:, groups])
        if abs(total - before) < _CHANGE:
            break
        before = total
    parameters = groups * d + int((~is_free_d).sum()) * (groups > 0) + groups
    evidence = total - 0.5 * parameters * np.log(n)
    return _Fit(r_nc, *used, means_kd, unsure_kdd, within, beyond, evidence)


def _alone(b_nd: Floats, h_ndd: Floats, is_free_d: Bools) -> tuple[Floats, Floats, Floats]:
    """Return estimates (n, d), covariances (n, d, d) and influence (n, n) without groups."""
    posteriors = [_by_itself(b[None], h[None], is_free_d) for b, h in zip(b_nd, h_ndd, strict=True)]
    covariances_ndd = np.concatenate([each.covariance for each in posteriors])
    estimates_nd = np.einsum("nde,ne->nd", covariances_ndd, b_nd)
    return estimates_nd, covariances_ndd, np.eye(len(b_nd))


def _shrunk(b_nd: Floats, is_free_d: Bools, fit: _Fit) -> tuple[Floats, Floats, Floats]:
    """Return estimates (n, d), covariances (n, d, d) and influence (n, n) with groups."""
    n, d = b_nd.shape
    groups, slopes, r_nc = len(fit.means), ~is_free_d, fit.shares
    of_groups_nkd = fit.within.mean(b_nd, fit.means)
    components_ncd = np.append(of_groups_nkd, fit.beyond.mean(b_nd, np.zeros((1, d))), axis=1)
    estimates_nd = np.einsum("nc,ncd->nd", r_nc, components_ncd)
    covariance_ndd = (1 - r_nc[:, groups, None, None]) * fit.within.covariance
    covariance_ndd += r_nc[:, groups, None, None] * fit.beyond.covariance
    away_ncd = components_ncd - estimates_nd[:, None]
    covariance_ndd += np.einsum("nc,ncd,nce->nde", r_nc, away_ncd, away_ncd)
    shrunk_ndd = fit.within.covariance / fit.spread  # C_i T^-1
    precision_ndd, influence_nn = fit.within.precision(), np.zeros((n, n))
    for k, unsure_dd in enumerate(fit.mean_covariances):
        of_mean_ndd = shrunk_ndd @ unsure_dd @ shrunk_ndd.transpose(0, 2, 1)
        covariance_ndd += r_nc[:, k, None, None] * of_mean_ndd
        share_ndd = shrunk_ndd[:, slopes] @ unsure_dd  # slopes of C_i T^-1 V_k
        trace_nn = np.einsum("nde,jed->nj", share_ndd, precision_ndd[:, :, slopes])
        influence_nn += np.outer(r_nc[:, k], r_nc[:, k]) * trace_nn / slopes.sum()
    influence_nn = influence_nn.clip(0)
    np.fill_diagonal(influence_nn, 0)
    influence_nn /= np.maximum(influence_nn.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(influence_nn, 1 - influence_nn.sum(axis=1))
    return estimates_nd, covariance_ndd, influence_nn


def _inverses(matrices_ndd: Floats) -> tuple[Floats, Floats]:
    """Return inverses and log determinants of positive definite matrices, by Cholesky for speed."""
    inverses_ndd, logs_n = np.empty_like(matrices_ndd), np.empty(len(matrices_ndd))
    for i, matrix_dd in enumerate(matrices_ndd):
        factor_dd, failed = lapack.dpotrf(matrix_dd, lower=1)
        if failed:
            raise np.linalg.LinAlgError("a curvature is not positive semidefinite")
        lower_dd, _ = lapack.dpotri(factor_dd, lower=1)
        lower_dd = np.tril(lower_dd)
        inverses_ndd[i] = lower_dd + np.tril(lower_dd, -1).T
        logs_n[i] = 2 * np.log(np.diagonal(factor_dd)).sum()
    return inverses_ndd, logs_n


def _diagonals(matrices_ndd: Floats) -> Floats:
    return np.asarray(np.diagonal(matrices_ndd, axis1=1, axis2=2))
