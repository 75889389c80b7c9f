"""Metrics of a peer's predictions beyond loss and accuracy, for its final report.

Written out as importing scikit-learn takes longer than a short run. Legend: n = examples,
k = classes or outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.clients.diagnostics import auroc, by_score, c_index, risks
from coterie.clients.letters import Floats, Ints

_BINS = 15  # confidence bins: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017
_POINTS = 40  # maximum number of points of a curve
_MAX_CLASSES = 20  # for the confusion matrix and ROC curves


def classification(p_nk: Floats, labels_n: Ints) -> dict[str, float]:
    """Compute metrics of class probabilities; nan where undefined.

    AUROC is one class against the rest, averaged over the classes that occur; the expected
    calibration error is that of the most probable class in 15 bins.
    """
    counts_kk = confusion(p_nk, labels_n)
    hits_k, true_k, predicted_k = np.diag(counts_kk), counts_kk.sum(axis=1), counts_kk.sum(axis=0)
    occurs_k = true_k > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        recall_k = hits_k / true_k
        f1_k = 2 * hits_k / (true_k + predicted_k)
    confidence_j, accuracy_j, size_j = np.array(reliability(p_nk, labels_n)).T
    off_j = np.abs(confidence_j - accuracy_j)
    metrics = {
        "balanced_accuracy": float(recall_k[occurs_k].mean()),
        "macro_f1": float(f1_k[true_k + predicted_k > 0].mean()),
        "auroc": _mean([auroc(p_nk[:, c], labels_n == c) for c in _compared(p_nk)]),
        "expected_calibration_error": float((off_j * size_j).sum() / len(labels_n)),
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
    curves: dict[str, Any] = {"reliability": reliability(p_nk, labels_n)}
    if p_nk.shape[1] > _MAX_CLASSES:
        return curves
    matrix = confusion(p_nk, labels_n).tolist()
    return {"confusion": matrix, "roc": _rocs(p_nk, labels_n), **curves}


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
        for at in (bin_n == b for b in np.flatnonzero(np.bincount(bin_n)))
    ]


def _compared(p_nk: Floats) -> list[int]:
    """Return the classes that are compared with the rest: the second of two, or all."""
    return [*range(int(p_nk.shape[1] == 2), p_nk.shape[1])]


def _rocs(p_nk: Floats, labels_n: Ints) -> list[list[list[float]]]:
    """Return up to `_POINTS` points [false positive rate, true positive rate] per class."""
    # Empty if all examples are of the class, or none is.
    curves: list[list[list[float]]] = []
    for c in _compared(p_nk):
        ascending = by_score(p_nk[:, c], labels_n == c)
        hits, misses = (np.append(0.0, each[::-1].cumsum()) for each in ascending)
        if not hits[-1] or not misses[-1]:
            curves.append([])
            continue
        points = np.stack([misses / misses[-1], hits / hits[-1]], axis=1)
        if len(points) > _POINTS:
            rows = np.linspace(0, len(points) - 1, _POINTS).round().astype(np.int64)
            points = points[np.unique(rows)]
        curves.append(points.round(4).tolist())
    return curves


def _mean(values: list[float]) -> float:
    finite = [value for value in values if not np.isnan(value)]
    return float(np.mean(finite)) if finite else np.nan


def segmentation_curves(p: Floats, targets: Ints) -> dict[str, Any]:
    """Return the Dice score of each class but background, the mean over the n examples."""
    # `p` are (n, k, ...), of pixels; a class that is neither present nor predicted has score 1.
    predicted, axes = p.argmax(axis=1), tuple(range(1, targets.ndim))
    scores = []
    for each in range(1, p.shape[1]):
        here, there = predicted == each, targets == each
        sizes_n = here.sum(axis=axes) + there.sum(axis=axes)
        overlap_n = 2 * (here & there).sum(axis=axes)
        scores.append(float(np.where(sizes_n, overlap_n / np.maximum(sizes_n, 1), 1.0).mean()))
    return {"dice": scores}


MEASURES: dict[str, tuple[Callable[..., dict[str, float]], Callable[..., dict[str, Any]]]] = {
    "classification": (classification, classification_curves),
    "regression": (regression, regression_curves),
    "survival": (survival, lambda *_: {}),
    "segmentation": (lambda *_: {}, segmentation_curves),
}
"""Functions for the metrics and the curves of predictions and targets, by task."""
