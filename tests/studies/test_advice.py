"""Advice in known worlds: its models are scikit-learn's, and clear worlds have clear answers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from coterie.app.report.advice import DO_NOT_USE
from studies.advice import COLUMNS, INSTITUTIONS, WORLDS, after, auroc, fitted, optimism, simulated


def test_models_and_measures_are_those_of_scikit_learn() -> None:
    g = np.random.default_rng(0)
    x = np.insert(g.normal(size=(2, 80, 4)), 0, 1, axis=2)
    y = (x @ [0.5, 1, -1, 2, 0] + g.logistic(size=(2, 80)) > 0).astype(float)
    used = (g.random((2, 80)) < 0.7).astype(float)
    theta = fitted(x, y, used, np.array([1e-6, 1, 1, 1, 1]))
    for i in range(2):
        rows = used[i] > 0
        model = LogisticRegression(tol=1e-10, max_iter=1000).fit(x[i, rows, 1:], y[i, rows])
        assert theta[i, 1:] == pytest.approx(model.coef_[0], abs=1e-4)
        assert theta[i, 0] == pytest.approx(model.intercept_[0], abs=1e-4)
        assert auroc(x[i] @ theta[i], y[i]) == pytest.approx(roc_auc_score(y[i], x[i] @ theta[i]))


@pytest.mark.slow
def test_an_outlier_is_told_not_to_use_the_method() -> None:
    made = simulated(WORLDS["one outlier"], 240, 10, 0)
    assert made.accuracy.shape == (10, INSTITUTIONS)
    assert made.new[-1] < -0.2
    assert after(made, 10, 240)[-1] == DO_NOT_USE
    assert COLUMNS < 240


@pytest.mark.slow
def test_chosen_settings_are_hardly_optimistic() -> None:
    assert abs(np.mean([optimism(60, 0.0, number) for number in range(4)])) < 6
