"""Metrics of a final report, with scikit-learn as a reference."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import metrics

from clients import measures


def probabilities(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(seed)
    labels = g.integers(k, size=n)
    scores = g.normal(size=(n, k)).round(1) + 1.5 * np.eye(k)[labels]
    p_nk = np.exp(scores)
    return p_nk / p_nk.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("k", [2, 5])
def test_classes(k: int) -> None:
    p_nk, labels = probabilities(60, k)
    predicted, result = p_nk.argmax(axis=1), measures.classification(p_nk, labels)
    score = p_nk[:, 1] if k == 2 else p_nk
    expected = {
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro"),
        "auroc": metrics.roc_auc_score(labels, score, multi_class="ovr"),
    }
    if k == 2:
        expected["sensitivity"] = metrics.recall_score(labels, predicted)
        expected["specificity"] = metrics.recall_score(labels, predicted, pos_label=0)
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert result.keys() - expected.keys() == {"expected_calibration_error"}


def test_a_peer_that_has_not_every_class() -> None:
    """Missing classes do not make all metrics nan."""
    p_nk, labels = probabilities(40, 4)
    there = labels < 3
    p_nk, labels = p_nk[there], labels[there]
    predicted, result = p_nk.argmax(axis=1), measures.classification(p_nk, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class that is predicted but never occurs
        expected = metrics.balanced_accuracy_score(labels, predicted)
    assert result["balanced_accuracy"] == pytest.approx(expected)
    assert result["macro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
    each = [metrics.roc_auc_score(labels == k, p_nk[:, k]) for k in range(3)]
    assert result["auroc"] == pytest.approx(np.mean(each))
    assert np.isnan(measures.classification(p_nk[labels == 0], labels[labels == 0])["auroc"])


def test_calibration() -> None:
    """Confidence 0.7 and 7 of 10 correct is error 0; all correct is error 0.3."""
    p_nk = np.tile([0.3, 0.7], (10, 1))
    seven, all_ = np.arange(10) < 7, np.ones(10, dtype=int)
    error = "expected_calibration_error"
    assert measures.classification(p_nk, seven.astype(int))[error] == pytest.approx(0)
    assert measures.classification(p_nk, all_)[error] == pytest.approx(0.3)


def test_numbers() -> None:
    g = np.random.default_rng(0)
    targets = g.normal(size=(30, 2))
    values = targets + g.normal(size=(30, 2)) / 3
    expected = {
        "mae": metrics.mean_absolute_error(targets, values),
        "rmse": metrics.root_mean_squared_error(targets, values),
        "r2": metrics.r2_score(targets, values),
    }
    assert measures.regression(values, targets) == pytest.approx(expected)


def test_curves() -> None:
    p_nk, labels = probabilities(80, 2)
    result = measures.classification_curves(p_nk, labels)
    assert np.sum(result["confusion"]) == 80
    assert np.array_equal(result["confusion"], metrics.confusion_matrix(labels, p_nk.argmax(1)))
    false, true = np.array(result["roc"][0]).T
    area = metrics.roc_auc_score(labels, p_nk[:, 1])
    assert metrics.auc(false, true) == pytest.approx(area, abs=0.01)
    assert sum(row[2] for row in result["reliability"]) == 80
