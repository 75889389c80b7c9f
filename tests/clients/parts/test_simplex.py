"""Projections and programs on the simplex: optimality conditions, and other algorithms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from coterie.clients.letters import Floats
from coterie.clients.parts.simplex import minimise_on_simplex, project_onto_simplex, softmax

points = arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 8)), elements=st.floats(-5, 5)
)


def test_softmax_of_large_scores_and_of_those_in_a_mask() -> None:
    """Scores that differ by log 3 have the ratio 3; -inf and nan have no weight."""
    scores = np.array([[1e4, 1e4 - np.log(3), -np.inf, np.nan, 2e4], [-1e4, -1e4, 5, 5, 5]])
    among = np.array([[True] * 4 + [False], [True] * 2 + [False] * 3])
    expected = [[3 / 4, 1 / 4, 0, 0, 0], [1 / 2, 1 / 2, 0, 0, 0]]
    np.testing.assert_allclose(softmax(scores, among), expected)
    assert not softmax(scores, np.zeros_like(among)).any()


@given(points)
def test_it_is_the_nearest_point_of_the_simplex(v_pn: Floats) -> None:
    """w is the projection of v if and only if v - w = t on the support and <= t elsewhere."""
    w_pn = project_onto_simplex(v_pn)
    assert (w_pn >= 0).all()
    assert np.allclose(w_pn.sum(axis=1), 1, atol=1e-12)
    for v, w in zip(v_pn, w_pn, strict=True):
        gap = v - w
        t = gap[w.argmax()]
        assert np.allclose(gap[w > 0], t, atol=1e-12)
        assert (gap[w == 0] <= t + 1e-12).all()


@given(points)
def test_a_point_of_the_simplex_stays(v_pn: Floats) -> None:
    w_pn = project_onto_simplex(v_pn)
    assert np.allclose(project_onto_simplex(w_pn), w_pn, atol=1e-12)
    assert np.allclose(project_onto_simplex(v_pn + 3.0), w_pn, atol=1e-12)  # along (1, .., 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_program_finds_it_too(seed: int) -> None:
    v = np.random.default_rng(seed).normal(size=6)
    result = minimize(
        lambda w: ((w - v) ** 2).sum(), np.full(6, 1 / 6), jac=lambda w: 2 * (w - v),
        method="SLSQP", bounds=[(0, 1)] * 6, options={"ftol": 1e-14},
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(6)},
    )  # fmt: skip
    assert np.allclose(project_onto_simplex(v[None])[0], result.x, atol=1e-7)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 7), st.integers(1, 4)), elements=st.floats(-3, 3)),
    st.sampled_from([0.0, 0.1, 2.0]),
)
def test_the_minimum_of_a_quadratic_program(points_nd: Floats, variance: float) -> None:
    """P = X X' + v I, also singular: all slopes are at least those of the support."""
    matrix = points_nd @ points_nd.T + variance * np.eye(len(points_nd))
    a = minimise_on_simplex(matrix)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1, abs=1e-12)
    slopes, tolerance = matrix @ a, 1e-9 * max(1.0, matrix.max())
    assert slopes.min() >= a @ slopes - tolerance
    assert np.abs(slopes[a > 1e-9] - a @ slopes).max() <= tolerance


def test_independent_terms_weigh_by_the_inverse() -> None:
    a = minimise_on_simplex(np.diag([1.0, 2.0, 4.0]))
    assert a.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7], rel=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_a_solver_for_any_program_finds_the_minimum_too(seed: int) -> None:
    g = np.random.default_rng(seed)
    points = g.normal(size=(6, 4))
    matrix = points @ points.T + np.diag(g.uniform(0.1, 1.0, 6))
    solved = minimize(
        lambda a: a @ matrix @ a, np.full(6, 1 / 6), jac=lambda a: 2 * matrix @ a, method="SLSQP",
        bounds=[(0, 1)] * 6, constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"ftol": 1e-14},
    )  # fmt: skip
    assert np.abs(minimise_on_simplex(matrix) - solved.x).max() < 1e-6
