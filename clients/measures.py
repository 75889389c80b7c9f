"""Metrics of a peer's predictions beyond loss and accuracy, for its final report.

The definitions are scikit-learn's (tests compare), whose import takes longer than a short run.
Legend: n = examples, k = classes or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.clients.diagnostics import c_index, risks

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BINS = 15  # confidence bins: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017
_POINTS = 40  # maximum number of points of a curve
_MAX_CLASSES = 20  # for the confusion matrix and ROC curves


def classification(p_nk: Floats, labels_n: Ints) -> dict[str, float]:
    """Compute metrics of class probabilities; nan where undefined.

    AUROC is one class against the rest, averaged over the classes that occur; the expected
    calibration error is that of the most probable class in 15 bins. Binary problems also have
    sensitivity and specificity; the second class is the positive one.
    """
    counts_kk = confusion(p_nk, labels_n)
    hits_k, true_k, predicted_k = np.diag(counts_kk), counts_kk.sum(axis=1), counts_kk.sum(axis=0)
    occurs_k = true_k > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        recall_k = hits_k / true_k
        f1_k = 2 * hits_k / (true_k + predicted_k)
    metrics = {
        "balanced_accuracy": float(recall_k[occurs_k].mean()),
        "macro_f1": float(f1_k[true_k + predicted_k > 0].mean()),
        "auroc": _mean([_auroc(p_nk[:, c], labels_n == c) for c in _positive(len(true_k))]),
        "expected_calibration_error": _calibration_error(p_nk, labels_n),
    }
    if len(true_k) == 2:
        metrics |= {"sensitivity": float(recall_k[1]), "specificity": float(recall_k[0])}
    return metrics


def regression(values_nk: Floats, targets_nk: Floats) -> dict[str, float]:
    """Compute mean absolute error, root mean squared error and R2, averaged over the outputs."""
    errors_nk = values_nk - targets_nk
    squares_k = np.square(errors_nk).mean(axis=0)
    variance_k = targets_nk.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2_k = np.where(variance_k > 0, 1 - squares_k / variance_k, np.nan)
    return {
        "mae": float(np.abs(errors_nk).mean()),
        "rmse": float(np.sqrt(squares_k).mean()),
        "r2": float(r2_k.mean()),
    }


def survival(survival_nk: Floats, targets_n3: Floats) -> dict[str, float]:
    """Compute the C-index; nan without comparable pairs."""
    risk_n, event_n = risks(survival_nk), targets_n3[:, 1] > 0
    return {"c_index": float(c_index(risk_n, event_n, targets_n3[:, 2])[0])}


def confusion(p_nk: Floats, labels_n: Ints) -> Ints:
    """Return the confusion matrix (k, k); rows: true class, columns: predicted class."""
    k = p_nk.shape[1]
    return np.bincount(labels_n * k + p_nk.argmax(axis=1), minlength=k * k).reshape(k, k)


def classification_curves(p_nk: Floats, labels_n: Ints) -> dict[str, Any]:
    """Return the confusion matrix, ROC curves and reliability bins that a report draws."""
    k = p_nk.shape[1]
    if k > _MAX_CLASSES:
        return {"reliability": reliability(p_nk, labels_n)}
    return {
        "confusion": confusion(p_nk, labels_n).tolist(),
        "roc": [_roc(p_nk[:, c], labels_n == c) for c in _positive(k)],
        "reliability": reliability(p_nk, labels_n),
    }


def regression_curves(values_nk: Floats, targets_nk: Floats) -> dict[str, Any]:
    """Return the histogram of the first output's residuals that a report draws."""
    counts, edges = np.histogram(values_nk[:, 0] - targets_nk[:, 0], bins=_BINS)
    return {"residuals": {"counts": counts.tolist(), "edges": edges.round(6).tolist()}}


def reliability(p_nk: Floats, labels_n: Ints) -> list[list[float]]:
    """Return [mean confidence, accuracy, number of examples] of each non-empty bin."""
    confidence_n, correct_n = p_nk.max(axis=1), p_nk.argmax(axis=1) == labels_n
    bin_n = np.minimum((confidence_n * _BINS).astype(np.int64), _BINS - 1)
    return [
        [float(confidence_n[at].mean()), float(correct_n[at].mean()), int(at.sum())]
        for at in (bin_n == b for b in range(_BINS))
        if at.any()
    ]


def _calibration_error(p_nk: Floats, labels_n: Ints) -> float:
    bins = np.array(reliability(p_nk, labels_n))
    return float((np.abs(bins[:, 0] - bins[:, 1]) * bins[:, 2]).sum() / len(labels_n))


def _auroc(score_n: Floats, positive_n: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a positive example scores above a negative one; ties count 1/2.

    nan if all examples are positive or all negative.
    """
    positive, negative = int(positive_n.sum()), int((~positive_n).sum())
    if not positive or not negative:
        return np.nan
    _, index_n, count = np.unique(score_n, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    above = rank[index_n[positive_n]].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def _roc(score_n: Floats, positive_n: npt.NDArray[np.bool_]) -> list[list[float]]:
    """Return up to `_POINTS` points [false positive rate, true positive rate] of the ROC curve.

    Empty if all examples are positive or all negative.
    """
    if positive_n.all() or not positive_n.any():
        return []
    order = np.argsort(-score_n, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score_n[order])), len(order) - 1)
    hits = np.cumsum(positive_n[order])[ends]
    points = np.stack([(ends + 1 - hits) / (~positive_n).sum(), hits / positive_n.sum()], axis=1)
    points = np.concatenate([[[0.0, 0.0]], points])
    rows = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(np.int64))
    thinned: list[list[float]] = points[rows].round(4).tolist()
    return thinned


def _positive(classes: int) -> Iterable[int]:
    """Return the classes to compare with the rest: all, or the second of two."""
    return range(int(classes == 2), classes)


def _mean(values: list[float]) -> float:
    finite = [value for value in values if not np.isnan(value)]
    return float(np.mean(finite)) if finite else np.nan


MEASURES: dict[str, tuple[Callable[..., dict[str, float]], Callable[..., dict[str, Any]]]] = {
    "classification": (classification, classification_curves),
    "regression": (regression, regression_curves),
    "survival": (survival, lambda *_: {}),
}
"""Functions for the metrics and the curves of predictions and targets, by task."""
