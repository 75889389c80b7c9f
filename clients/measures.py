"""How good one peer's predictions are, beyond loss and accuracy: what its last report says.

The definitions are scikit-learn's (tests compare), whose import takes longer than a short run.
Legend: n = examples, k = classes or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BINS = 15  # of confidence: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017
_POINTS = 40  # of a drawn curve
_MOST_CLASSES = 20  # that a page can show one by one


def classification(p_nk: Floats, labels_n: Ints) -> dict[str, float]:
    """Measures of class probabilities; nan where one has no meaning, with two classes two more.

    AUROC is that of each class against the rest, averaged over the classes that occur; the
    expected calibration error that of the most probable class in 15 bins. Of two classes the
    second is the positive one.
    """
    counts_kk = confusion(p_nk, labels_n)
    right_k, true_k, said_k = np.diag(counts_kk), counts_kk.sum(axis=1), counts_kk.sum(axis=0)
    occurs_k = true_k > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        recall_k = right_k / true_k
        f1_k = 2 * right_k / (true_k + said_k)
    found = {
        "balanced_accuracy": float(recall_k[occurs_k].mean()),
        "macro_f1": float(f1_k[true_k + said_k > 0].mean()),
        "auroc": _mean([_auroc(p_nk[:, c], labels_n == c) for c in _drawn(len(true_k))]),
        "expected_calibration_error": _calibration_error(p_nk, labels_n),
    }
    if len(true_k) == 2:
        found |= {"sensitivity": float(recall_k[1]), "specificity": float(recall_k[0])}
    return found


def regression(values_nk: Floats, targets_nk: Floats) -> dict[str, float]:
    """Mean absolute error, root of the mean squared error and R2, averaged over the outputs."""
    away_nk = values_nk - targets_nk
    squares_k = np.square(away_nk).mean(axis=0)
    variance_k = targets_nk.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2_k = np.where(variance_k > 0, 1 - squares_k / variance_k, np.nan)
    return {
        "mae": float(np.abs(away_nk).mean()),
        "rmse": float(np.sqrt(squares_k).mean()),
        "r2": float(r2_k.mean()),
    }


def confusion(p_nk: Floats, labels_n: Ints) -> Ints:
    """(k, k) examples of each class (row) that are taken for each class (column)."""
    k = p_nk.shape[1]
    return np.bincount(labels_n * k + p_nk.argmax(axis=1), minlength=k * k).reshape(k, k)


def classification_curves(p_nk: Floats, labels_n: Ints) -> dict[str, Any]:
    """What a page draws: confusion matrix, ROC curve of each class, reliability in bins."""
    k = p_nk.shape[1]
    if k > _MOST_CLASSES:
        return {"reliability": reliability(p_nk, labels_n)}
    return {
        "confusion": confusion(p_nk, labels_n).tolist(),
        "roc": [_roc(p_nk[:, c], labels_n == c) for c in _drawn(k)],
        "reliability": reliability(p_nk, labels_n),
    }


def regression_curves(values_nk: Floats, targets_nk: Floats) -> dict[str, Any]:
    """What a page draws: how many residuals of the first output lie between which edges."""
    counts, edges = np.histogram(values_nk[:, 0] - targets_nk[:, 0], bins=_BINS)
    return {"residuals": {"counts": counts.tolist(), "edges": edges.round(6).tolist()}}


def reliability(p_nk: Floats, labels_n: Ints) -> list[list[float]]:
    """[mean confidence, accuracy, examples] of each bin that has any."""
    sure_n, right_n = p_nk.max(axis=1), p_nk.argmax(axis=1) == labels_n
    bin_n = np.minimum((sure_n * _BINS).astype(np.int64), _BINS - 1)
    return [
        [float(sure_n[at].mean()), float(right_n[at].mean()), int(at.sum())]
        for at in (bin_n == b for b in range(_BINS))
        if at.any()
    ]


def _calibration_error(p_nk: Floats, labels_n: Ints) -> float:
    bins = np.array(reliability(p_nk, labels_n))
    return float((np.abs(bins[:, 0] - bins[:, 1]) * bins[:, 2]).sum() / len(labels_n))


def _auroc(score_n: Floats, positive_n: npt.NDArray[np.bool_]) -> float:
    """Chance that a positive example scores higher than another one, ties half; nan of one kind."""
    positive, negative = int(positive_n.sum()), int((~positive_n).sum())
    if not positive or not negative:
        return np.nan
    _, place_n, count = np.unique(score_n, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    above = rank[place_n[positive_n]].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def _roc(score_n: Floats, positive_n: npt.NDArray[np.bool_]) -> list[list[float]]:
    """Points [false positive rate, true positive rate], at most some; none of one kind."""
    if positive_n.all() or not positive_n.any():
        return []
    order = np.argsort(-score_n, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score_n[order])), len(order) - 1)
    hits = np.cumsum(positive_n[order])[ends]
    points = np.stack([(ends + 1 - hits) / (~positive_n).sum(), hits / positive_n.sum()], axis=1)
    points = np.concatenate([[[0.0, 0.0]], points])
    kept = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(np.int64))
    thinned: list[list[float]] = points[kept].round(4).tolist()
    return thinned


def _drawn(classes: int) -> Iterable[int]:
    """The classes that are held against the rest: of two, one says it all."""
    return range(int(classes == 2), classes)


def _mean(values: list[float]) -> float:
    there = [value for value in values if not np.isnan(value)]
    return float(np.mean(there)) if there else np.nan


MEASURES: dict[str, tuple[Callable[..., dict[str, float]], Callable[..., dict[str, Any]]]] = {
    "classification": (classification, classification_curves),
    "regression": (regression, regression_curves),
}
"""Task -> what is measured of predictions and targets, and what is drawn."""
