"""Projection onto the probability simplex: optimality conditions, and another algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from clients.parts.simplex import Floats, project_onto_simplex

points = arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 8)), elements=st.floats(-5, 5)
)


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
