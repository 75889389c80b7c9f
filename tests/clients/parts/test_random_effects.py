"""Random effects from letters: laws, and a plain loop of the equations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from coterie.clients.letters import Floats
from coterie.clients.parts.random_effects import FREE, Effects, estimated

D = 4
IS_FREE = np.arange(D) == 0


def letters(theta_nd: Floats, rows: int = 60, seed: int = 0) -> tuple[Floats, Floats]:
    """Return b (n, d) and H (n, d, d) of least squares with unit variance, y = theta (1, x) + e."""
    g = np.random.default_rng(seed)
    b, h = [], []
    for theta in theta_nd:
        x = np.hstack([np.ones((rows, 1)), g.normal(size=(rows, D - 1))])
        y = x @ theta + g.normal(size=rows)
        b.append(x.T @ y)
        h.append(x.T @ x)
    return np.array(b), np.array(h)


def evidence(b: Floats, h: Floats, variance: float) -> float:
    """Return the log evidence of one letter under N(0, variance I) of the slopes."""
    prior = np.where(IS_FREE, FREE, variance)
    c = np.linalg.inv(h + np.diag(1 / prior))
    return float(0.5 * (b @ c @ b + np.linalg.slogdet(c)[1] - np.log(prior).sum()))


def two_groups(n: int = 8, seed: int = 0) -> Floats:
    g = np.random.default_rng(seed)
    centres = np.array([[0, 1.5, -1, 0.5], [0, -1, 1.5, 1]])
    theta = centres[np.arange(n) % 2] + 0.1 * g.normal(size=(n, D))
    theta[:, 0] = 3 * g.normal(size=n)
    return theta


def plain(b: Floats, h: Floats, effects: Effects) -> tuple[Floats, Floats]:
    """Return estimates and T of one step from the result, by letter: S_i = H_i^-1, m_i = S_i b_i.

    The deviation theta_i - mu = G_i (m_i - mu) with G_i = T (S_i + T)^-1, where mu ~ N(mu_k, U_k).
    """
    n, groups = len(b), effects.groups
    spread = np.diag(effects.spread)
    beyond = np.diag(np.where(IS_FREE, FREE, effects.background))
    s = [np.linalg.inv(each) for each in h]
    m = [s[i] @ b[i] for i in range(n)]
    r = effects.membership
    means, unsure = [], []
    for k in range(groups):
        weights = [r[i, k] * np.linalg.inv(s[i] + spread) for i in range(n)]
        total = sum(weights) + 0.1 * np.eye(D)
        means.append(np.linalg.solve(total, sum(w @ m[i] for i, w in enumerate(weights))))
        unsure.append(np.linalg.inv(total))
    theta, squares = [], np.full(D, 1e-3)
    for i in range(n):
        parts = [mu + spread @ np.linalg.solve(s[i] + spread, m[i] - mu) for mu in means]
        parts.append(beyond @ np.linalg.solve(s[i] + beyond, m[i]))
        theta.append(sum(share * part for share, part in zip(r[i], parts, strict=True)))
        gain = spread @ np.linalg.inv(s[i] + spread)
        left = spread - gain @ spread
        for k, mu in enumerate(means):
            away = gain @ (m[i] - mu)
            squares += r[i, k] * (away**2 + np.diag(left + gain @ unsure[k] @ gain.T))
    spread_d = np.maximum(squares / (r[:, :groups].sum() + 1e-2), 1e-4)
    return np.array(theta), np.where(IS_FREE, FREE, spread_d)


@pytest.mark.parametrize("groups", [1, 2])
def test_estimates_are_those_of_the_random_coefficient_model(groups: int) -> None:
    b, h = letters(two_groups())
    effects = estimated(b, h, IS_FREE, groups)
    theta, spread = plain(b, h, effects)
    assert effects.estimates == pytest.approx(theta, abs=2e-3)  # EM's last step
    assert effects.spread == pytest.approx(spread, rel=2e-3)


def restricted(m: Floats, s: Floats) -> Callable[[Floats], float]:
    """Return minus the log density of all m_i by log T of slopes, the group's mean integrated out.

    The m (n d) are one normal vector: m_i = mu + u_i + e_i with mu ~ N(0, 10 I), u_i ~ N(0, T),
    e_i ~ N(0, S_i). The prior of T is EM's: 0.01 peers of variance 0.1.
    """

    def loss(log_t: Floats) -> float:
        spread = np.where(IS_FREE, FREE, np.exp(np.append(0, log_t)))
        shared = 10 * np.kron(np.ones((len(m), len(m))), np.eye(D))
        covariance = shared + block_diag(*(each + np.diag(spread) for each in s))
        prior = -0.5 * (1e-2 * log_t + 1e-3 * np.exp(-log_t)).sum()
        return -float(multivariate_normal(cov=covariance).logpdf(m.ravel()) + prior)

    return loss


def few(seed: int = 0) -> Floats:
    """Return the parameters of 4 peers near (3, -3, 3), where the background explains nothing."""
    g = np.random.default_rng(seed)
    return np.array([0, 3, -3, 3]) + 0.5 * g.normal(size=(4, D))


def test_spread_is_the_restricted_maximum_likelihood_estimate() -> None:
    b, h = letters(few(), rows=30)
    s = np.asarray(np.linalg.inv(h), dtype=np.float64)
    m = np.einsum("nde,ne->nd", s, b)
    best = minimize(restricted(m, s), np.full(D - 1, -1.0), tol=1e-8)
    assert estimated(b, h, IS_FREE, 1).spread[1:] == pytest.approx(np.exp(best.x), rel=0.02)


def test_spread_of_equal_curvatures_divides_by_n_minus_1() -> None:
    """With S = 0.01 I of all, T + 0.01 is the sample variance: that of n - 1, not of n."""
    m = few()
    spread = estimated(100 * m, np.array([100 * np.eye(D)] * len(m)), IS_FREE, 1).spread[1:]
    assert spread + 0.01 == pytest.approx(m[:, 1:].var(axis=0, ddof=1), rel=0.02)


def test_groups_are_found_with_free_intercepts() -> None:
    effects = estimated(*letters(two_groups()), IS_FREE)
    of = effects.membership.argmax(axis=1)
    assert effects.groups == 2
    assert set(of[::2]) != set(of[1::2])
    assert (len(set(of[::2])), len(set(of[1::2]))) == (1, 1)
    assert np.allclose(effects.influence.sum(axis=1), 1)
    assert effects.influence[0, 1::2].max() < 0.01 < effects.influence[0, 2::2].min()


def test_peers_that_are_all_different_share_nothing() -> None:
    g = np.random.default_rng(1)
    b, h = letters(g.normal(size=(8, D)) * 1.5)
    effects = estimated(b, h, IS_FREE)
    assert effects.groups == 0
    assert np.array_equal(effects.influence, np.eye(8))
    alone = estimated(b[2:3], h[2:3], IS_FREE)
    assert effects.estimates[2] == pytest.approx(alone.estimates[0], abs=1e-12)
    best = max(np.linspace(0.05, 10, 200), key=lambda v: evidence(b[2], h[2], v))
    prior = np.diag(1 / np.where(IS_FREE, FREE, best))
    assert alone.estimates[0] == pytest.approx(np.linalg.solve(h[2] + prior, b[2]), abs=0.05)


def test_equal_peers_are_one_group_of_little_spread() -> None:
    """Pooled least squares, up to the own intercept and the prior of the group's mean."""
    theta = np.array([[0.5, 1, -1, 0.3]] * 12)
    b, h = letters(theta, rows=200)
    effects = estimated(b, h, IS_FREE)
    assert effects.groups == 1
    assert effects.spread[1:].max() < 0.01
    pooled = np.linalg.solve(h.sum(axis=0), b.sum(axis=0))
    assert np.abs(effects.estimates[:, 1:] - pooled[1:]).max() < 0.06


def test_the_order_of_peers_does_not_matter() -> None:
    b, h = letters(two_groups())
    order = np.random.default_rng(0).permutation(len(b))
    one, other = estimated(b, h, IS_FREE), estimated(b[order], h[order], IS_FREE)
    assert other.estimates == pytest.approx(one.estimates[order], abs=1e-6)
    assert other.influence == pytest.approx(one.influence[np.ix_(order, order)], abs=1e-6)


def test_a_letter_without_information_is_read_as_the_group() -> None:
    """H = 0: a peer without rows gets the mean of the group, and moves nobody."""
    b, h = letters(np.array([[0, 1.0, -1, 0.3]] * 8), rows=100)
    b[0], h[0] = 0, 0
    effects = estimated(b, h, IS_FREE, 1)
    share = effects.membership[0, 0]
    assert effects.estimates[0, 1:] == pytest.approx(share * effects.means[0, 1:], abs=1e-3)
    assert effects.influence[1:, 0].max() < 1e-9


def test_intervals_cover_the_truth() -> None:
    covered = []
    for seed in range(10):
        theta = two_groups(10, seed)
        effects = estimated(*letters(theta, 40, seed), IS_FREE)
        half = 1.96 * np.sqrt(np.diagonal(effects.covariances, axis1=1, axis2=2))
        covered.append(np.abs(effects.estimates - theta) <= half)
    assert 0.9 < np.mean(covered) <= 1
