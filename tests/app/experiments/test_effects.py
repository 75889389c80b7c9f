"""Gains shrunk to the consortium's: sampling variances by hand, laws, and a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from coterie.app.experiments.effects import sampled, shrunk

GAINS = np.array([0.01, 0.03, 0.05, 0.04, -0.2])
VARIANCES = np.array([1.0, 2.0, 1.0, 4.0, 3.0]) * 1e-4


def test_the_variance_is_that_of_nadeau_and_bengio_with_a_floor() -> None:
    """Variances 4 and 0 of 10 and 40 rows: c = (2 x 10 x 4) / 4 = 20, so 4 and 20 / 40 at least.

    Times 1/3 + 1/2, and the squared ratio of Student's t with 4 degrees of freedom to the normal.
    """
    values = [np.array([0.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0])]
    mean, variance = sampled(values, np.array([0.5, 0.5]), np.array([10.0, 40.0]))
    wider = (stats.t.ppf(0.975, 4) / stats.norm.ppf(0.975)) ** 2
    assert mean.tolist() == [2, 1]
    assert variance == pytest.approx(np.array([4, 0.5]) * (1 / 3 + 1 / 2) * wider)


def test_two_seeds_have_no_variance() -> None:
    _, variance = sampled([np.array([0.0, 2.0, np.nan])], np.zeros(1), np.ones(1))
    assert np.isnan(variance).all()


def test_intervals_of_two_institutions_are_their_own() -> None:
    half = 1.959964 * np.sqrt(VARIANCES[:2])
    ends = shrunk(GAINS[:2], VARIANCES[:2], 0.04)
    assert ends == pytest.approx(np.stack([GAINS[:2], GAINS[:2] - half, GAINS[:2] + half], axis=1))


def test_the_posterior_is_a_plain_loop() -> None:
    """Bayes' rule on grids of mu, tau and gamma, one institution, mean and spread at a time."""
    gamma = np.linspace(-0.3, 0.15, 901)
    posterior = np.zeros((5, len(gamma)))
    for mu in np.linspace(-0.03, 0.09, 25):
        for tau in np.linspace(0.0005, 0.1, 25):
            prior = 0.9 * stats.norm.pdf(gamma, mu, tau) + 0.1 * stats.cauchy.pdf(gamma, 0, 0.04)
            joint = [
                prior * stats.norm.pdf(g, gamma, np.sqrt(v))
                for g, v in zip(GAINS, VARIANCES, strict=True)
            ]
            total = [each.sum() for each in joint]
            for i, each in enumerate(joint):
                posterior[i] += each / total[i] * np.prod(total)
    posterior /= posterior.sum(axis=1, keepdims=True)
    ends = shrunk(GAINS, VARIANCES, 0.04)
    assert ends[:, 0] == pytest.approx(posterior @ gamma, abs=1.5e-3)
    for k, level in ((1, 0.025), (2, 0.975)):
        expected = [gamma[np.searchsorted(each.cumsum(), level)] for each in posterior]
        assert ends[:, k] == pytest.approx(expected, abs=2e-3)


def test_institutions_that_agree_are_narrower_and_an_outlier_stays() -> None:
    ends = shrunk(np.array([0.03, 0.03, 0.04, 0.04, -0.2]), VARIANCES, 0.04)
    own = 2 * 1.959964 * np.sqrt(VARIANCES)
    assert (ends[:4, 2] - ends[:4, 1] < 0.9 * own[:4]).all()
    assert ends[4, 0] == pytest.approx(-0.2, abs=0.01)
    assert ends[4, 2] < -0.15


def test_unit_order_and_sign_change_nothing_else() -> None:
    ends = shrunk(GAINS, VARIANCES, 0.04)
    assert shrunk(100 * GAINS, 1e4 * VARIANCES, 4.0) == pytest.approx(100 * ends)
    assert shrunk(GAINS[::-1], VARIANCES[::-1], 0.04) == pytest.approx(ends[::-1])
    turned = shrunk(-GAINS, VARIANCES, 0.04)
    assert -turned[:, [0, 2, 1]] == pytest.approx(ends, abs=1e-3)  # a step of the grid


def test_an_institution_without_an_interval_moves_nobody() -> None:
    gains, variances = np.append(GAINS, 0.5), np.append(VARIANCES, np.nan)
    ends = shrunk(gains, variances, 0.04)
    assert ends[:5] == pytest.approx(shrunk(GAINS, VARIANCES, 0.04))
    assert ends[5, 0] == 0.5
    assert np.isnan(ends[5, 1:]).all()


def test_more_tests_make_wider_intervals() -> None:
    one, four = shrunk(GAINS, VARIANCES, 0.04), shrunk(GAINS, VARIANCES, 0.04, tests=4)
    assert (four[:, 1] < one[:, 1]).all()
    assert (four[:, 2] > one[:, 2]).all()


def test_methods_that_never_differ_have_no_width() -> None:
    ends = shrunk(*sampled([np.zeros(3)] * 4, np.full(4, 0.3), np.full(4, 30.0)), 0.04)
    assert (ends == 0).all()
