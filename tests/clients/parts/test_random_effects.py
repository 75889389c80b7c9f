"""Random effects from letters: laws, and a plain loop of the equations."""

from __future__ import annotations

import numpy as np
import pytest

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


def plain(b: Floats, h: Floats, effects: Effects) -> Floats:
    """One M-step and E-step from the result, letter by letter: S_i = H_i^-1, m_i = S_i b_i."""
    n, groups = len(b), effects.groups
    spread = np.diag(effects.spread)
    beyond = np.diag(np.where(IS_FREE, FREE, effects.background))
    s = [np.linalg.inv(each) for each in h]
    m = [s[i] @ b[i] for i in range(n)]
    r = effects.membership
    means = []
    for k in range(groups):
        weights = [r[i, k] * np.linalg.inv(s[i] + spread) for i in range(n)]
        total = sum(weights) + 0.1 * np.eye(D)
        means.append(np.linalg.solve(total, sum(w @ m[i] for i, w in enumerate(weights))))
    theta = []
    for i in range(n):
        parts = [mu + spread @ np.linalg.solve(s[i] + spread, m[i] - mu) for mu in means]
        parts.append(beyond @ np.linalg.solve(s[i] + beyond, m[i]))
        theta.append(sum(share * part for share, part in zip(r[i], parts, strict=True)))
    return np.array(theta)


@pytest.mark.parametrize("groups", [1, 2])
def test_estimates_are_those_of_the_random_coefficient_model(groups: int) -> None:
    b, h = letters(two_groups())
    effects = estimated(b, h, IS_FREE, groups)
    assert effects.estimates == pytest.approx(plain(b, h, effects), abs=2e-3)  # EM's last step


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
