"""Diagnostic accuracy of a model of two classes, and C-index of survival, with 95 % intervals.

The second class is positive. Shares have Wilson's interval (Wilson 1927), which is not empty where
a share is 0 or 1; other measures the percentile interval of a bootstrap. Groups of examples, such
as patients, are drawn whole, and a share has the interval of as many independent examples as have
its variance between groups (Rao and Scott 1992). Definitions are scikit-learn's. Legend:
n = examples, b = resamples, g = groups of equal scores, k = classes, u = groups of examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.clients.letters import Bools, Floats, Ints

Estimate = tuple[float, float, float]
"""Value, and the ends of its 95 % interval; NaN where undefined."""

DECISIONS = ("accuracy", "sensitivity", "specificity", "ppv", "npv")
"""Measures of decisions at a threshold."""
RANKINGS = ("auroc", "auprc", "brier", "observed_expected")
"""Measures of probabilities."""
HALF = 0.5
"""Threshold of the class with the largest probability."""
TEMPERATURES = (0.05, 20.0)
"""Range of fitted temperatures."""
_Z = 1.959963984540054  # 97.5th percentile of the normal distribution
_PRIVATE_DECIMALS = 2
_SEED = 0xB007
_RESAMPLES = 1000
_MIN_RESAMPLES = 200
_CELLS = 2_000_000  # resamples times examples
_BLOCK = 512  # examples whose pairs are counted at a time


def diagnose(
    test: tuple[Floats, Ints],
    validation: tuple[Floats, Ints] | None = None,
    *,
    private: bool = False,
    groups: tuple[Ints | None, Ints | None] = (None, None),
) -> dict[str, Any]:
    """Return the diagnostic accuracy on test examples, ready for JSON (null where undefined).

    Both tuples are class probabilities (n, 2) and classes (n,), `groups` theirs, (n,); validation
    examples choose threshold and temperature. `private` rounds the threshold, which is otherwise
    the mean of two examples' probabilities. "measures" are name -> `Estimate` at `HALF`,
    "at_threshold" those at the "threshold" that "chosen_by" validation examples (or groups) chose,
    and "recalibrated" those at the "temperature".
    """
    p_n, positive_n = test[0][:, 1], test[1] == 1
    decided = partial(decisions, p_n, positive_n, groups_n=groups[0])
    chosen: dict[str, Any] = {}
    result = {"examples": len(p_n), "positives": int(positive_n.sum())}
    if validation is not None and len(np.unique(validation[1])) == 2:
        threshold = youden(validation[0][:, 1], validation[1] == 1)
        threshold = round(threshold, _PRIVATE_DECIMALS) if private else threshold
        temperature = fitted_temperature(*validation)
        scaled, names = recalibrated(test[0], temperature)[:, 1], ("brier", "observed_expected")
        groups_v = validation[1] if groups[1] is None else np.unique(groups[1])
        result["chosen_by"] = len(groups_v)
        chosen = {
            "threshold": threshold,
            "at_threshold": decided(threshold),
            "temperature": temperature,
            "recalibrated": rankings(scaled, positive_n, names, groups[0]),
        }
    measures = decided(HALF) | rankings(p_n, positive_n, groups_n=groups[0])
    return _ready({**result, "measures": measures, **chosen})


def diagnose_survival(
    survival_nk: Floats, targets_n3: Floats, groups_n: Ints | None = None
) -> dict[str, Any]:
    """Return the C-index of survival probabilities in the form of `diagnose`; positives: events."""
    # The bootstrap takes quadratic time. Probabilities are those of surviving up to each interval.
    risk_n, event_n, time_n = risks(survival_nk), targets_n3[:, 1] > 0, targets_n3[:, 2]
    value, low, high = c_index(risk_n, event_n, time_n)[0], np.nan, np.nan
    if len(risk_n):
        counts_bn = _resamples(len(risk_n), groups_n)
        low, high = _middle(c_index(risk_n, event_n, time_n, counts_bn))
    if low == high:  # too few pairs for a bootstrap
        low = high = np.nan
    measures = {"c_index": (float(value), low, high)}
    return _ready({"examples": len(risk_n), "positives": int(event_n.sum()), "measures": measures})


def _ready(found: dict[str, Any]) -> dict[str, Any]:
    """Make estimates ready for JSON: null where undefined."""
    empty: dict[str, Any] = {"threshold": None, "at_threshold": {}}
    empty |= {"temperature": None, "recalibrated": {}}
    result = found | {key: found.get(key, value) for key, value in empty.items()}
    estimates = {
        part: {
            name: [value if math.isfinite(value) else None for value in estimate]
            for name, estimate in result[part].items()
        }
        for part in ("measures", "at_threshold", "recalibrated")
    }
    return result | estimates


def risks(survival_nk: Floats) -> Floats:
    """Return the risk of examples: the mean of 1 - S over the ends of the intervals."""
    return np.asarray((1 - survival_nk).mean(axis=1))


def c_index(
    risk_n: Floats, event_n: Bools, time_n: Floats, counts_bn: Floats | None = None
) -> Floats:
    """Return Harrell's C of each resample, (b,); NaN without comparable pairs.

    A pair is comparable if the earlier time is an event; with equal times, a censored one is later
    (Harrell, Lee and Mark 1996; as in scikit-survival). `counts_bn`: multiplicities; None: 1.
    """
    counts_bn = np.ones((1, len(risk_n))) if counts_bn is None else counts_bn
    right_b, pairs_b = np.zeros((2, len(counts_bn)))
    events = np.flatnonzero(event_n)
    for first in range(0, len(events), _BLOCK):
        at = events[first : first + _BLOCK, None]
        later = (time_n[at] < time_n) | ((time_n[at] == time_n) & ~event_n)
        higher = np.where(risk_n[at] == risk_n, 0.5, risk_n[at] > risk_n)
        drawn_be = counts_bn[:, at[:, 0]]
        pairs_b += (drawn_be * (counts_bn @ later.T)).sum(axis=1)
        right_b += (drawn_be * (counts_bn @ (later * higher).T)).sum(axis=1)
    return _divided(right_b, pairs_b)


def _middle(values_b: Floats) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of the resamples in which a measure is defined."""
    values_b = values_b[~np.isnan(values_b)]
    low, high = np.quantile(values_b, [0.025, 0.975]) if len(values_b) else (np.nan, np.nan)
    return float(low), float(high)


def decisions(
    p_n: Floats, positive_n: Bools, threshold: float, groups_n: Ints | None = None
) -> dict[str, Estimate]:
    """Return accuracy, sensitivity, specificity and predictive values of p above a threshold."""
    predicted_n = p_n > threshold
    right_n = predicted_n == positive_n
    among = {
        "accuracy": np.ones_like(right_n), "sensitivity": positive_n, "specificity": ~positive_n,
        "ppv": predicted_n, "npv": ~predicted_n,
    }  # fmt: skip
    return {
        name: wilson(right_n[at], None if groups_n is None else groups_n[at])
        for name, at in among.items()
    }


def rankings(
    p_n: Floats, positive_n: Bools, names: Sequence[str] = RANKINGS, groups_n: Ints | None = None
) -> dict[str, Estimate]:
    """Return AUROC, average precision, Brier score, and ratio of observed to expected positives."""
    order, p_n, y_n, starts = _ordered(p_n, positive_n)

    def values(n_bn: Floats) -> dict[str, Floats]:
        ranked = {}
        if "auroc" in names or "auprc" in names:
            groups = _groups(n_bn, y_n, starts)
            ranked = {"auroc": _auroc(*groups), "auprc": _auprc(*groups)}
        return ranked | {
            "brier": n_bn @ np.square(p_n - y_n) / n_bn.sum(axis=1),
            "observed_expected": _divided(n_bn @ y_n, n_bn @ p_n),
        }

    value = values(np.ones((1, len(p_n))))
    resampled = values(_resamples(len(p_n), groups_n)[:, order])
    return {name: (float(value[name][0]), *_middle(resampled[name])) for name in names}


def auroc(p_n: Floats, positive_n: Bools) -> float:
    """Return the chance that a positive scores above a negative, ties 1/2; NaN with one class."""
    return float(_auroc(*(each[None] for each in by_score(p_n, positive_n)))[0])


def by_score(p_n: Floats, positive_n: Bools) -> tuple[Floats, Floats]:
    """Return the numbers of positives and negatives with each score, ascending, (g,) each."""
    _, _, is_positive_n, starts = _ordered(p_n, positive_n)
    positive_1g, negative_1g = _groups(np.ones((1, len(p_n))), is_positive_n, starts)
    return positive_1g[0], negative_1g[0]


def _ordered(p_n: Floats, positive_n: Bools) -> tuple[Ints, Floats, Floats, Ints]:
    """Return the order by score, scores and positives in it, and the first of equal scores."""
    order = np.argsort(p_n, kind="stable")
    starts = np.flatnonzero(np.diff(p_n[order], prepend=-np.inf))
    return order, p_n[order], positive_n[order].astype(np.float64), starts


def wilson(right_n: Bools, groups_n: Ints | None = None) -> Estimate:
    """Return the share of true values with Wilson's interval; NaN without values."""
    if not len(right_n):
        return np.nan, np.nan, np.nan
    share = float(right_n.mean())
    n = len(right_n) if groups_n is None else _independent(right_n, groups_n)
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    reach = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return share, max(0.0, centre - reach), min(1.0, centre + reach)


def _independent(right_n: Bools, groups_n: Ints) -> float:
    """Return the number of independent examples whose mean has the variance of one over groups."""
    # At most n; the number of groups if all examples agree.
    of_n = np.unique(groups_n, return_inverse=True)[1]
    errors_n = right_n - right_n.mean()
    sum_u, squares = np.bincount(of_n, errors_n), float(np.square(errors_n).sum())
    if not squares or len(sum_u) == 1:
        return len(sum_u)
    return len(errors_n) / max(1.0, float(np.square(sum_u).sum()) / squares)


def youden(p_n: Floats, positive_n: Bools) -> float:
    """Return the threshold with the largest sensitivity + specificity (Youden 1950)."""
    # It lies halfway between two probabilities; of equally good ones it is nearest to 1/2.
    values, of_value = np.unique(p_n, return_inverse=True)
    candidates = np.append((values[:-1] + values[1:]) / 2, 1.0)
    shares = (
        np.bincount(of_value[at], minlength=len(values)) / at.sum()
        for at in (positive_n, ~positive_n)
    )
    below_positive, below_negative = (share.cumsum() for share in shares)
    gain = below_negative - below_positive  # sensitivity + specificity - 1
    best = candidates[gain >= gain.max() - 1e-12]
    return float(best[np.argmin(np.abs(best - HALF))])


def fitted_temperature(p_nk: Floats, labels_n: Ints) -> float:
    """Return the temperature T with the smallest mean of -log softmax(log(p) / T) of the labels.

    Guo et al., ICML 2017. The mean is convex in 1 / T, so its derivative is bisected.
    """
    logs_nk = np.log(p_nk.clip(np.finfo(np.float64).tiny))
    chosen = np.take_along_axis(logs_nk, labels_n[:, None], axis=1).mean()
    low, high = (math.log(1 / temperature) for temperature in reversed(TEMPERATURES))
    for _ in range(60):
        middle = (low + high) / 2
        slope = (_softmax(math.exp(middle) * logs_nk) * logs_nk).sum(axis=1).mean() - chosen
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def recalibrated(p_nk: Floats, temperature: float) -> Floats:
    """Return the probabilities softmax(log(p) / T)."""
    return _softmax(np.log(p_nk.clip(np.finfo(np.float64).tiny)) / temperature)


def _softmax(scores_nk: Floats) -> Floats:
    powers_nk = np.exp(scores_nk - scores_nk.max(axis=1, keepdims=True))
    return np.asarray(powers_nk / powers_nk.sum(axis=1, keepdims=True), dtype=np.float64)


def _resamples(n: int, groups_n: Ints | None = None) -> Floats:
    """Return how often each resample has each example, (b, n); groups are drawn whole."""
    b = int(np.clip(_CELLS // n, _MIN_RESAMPLES, _RESAMPLES))
    of_n = np.arange(n) if groups_n is None else np.unique(groups_n, return_inverse=True)[1]
    u = int(of_n.max()) + 1
    drawn_bu = np.random.default_rng([_SEED, u]).integers(u, size=(b, u))
    drawn_bu += u * np.arange(b)[:, None]
    counts_bu = np.bincount(drawn_bu.ravel(), minlength=b * u).reshape(b, u).astype(np.float64)
    return counts_bu if groups_n is None else counts_bu[:, of_n]


def _groups(counts_bn: Floats, positive_n: Floats, starts: Ints) -> tuple[Floats, Floats]:
    """Return the numbers of positives and negatives with each score, ascending, (b, g) each."""
    positive_bg = np.add.reduceat(counts_bn * positive_n, starts, axis=1)
    negative_bg = np.add.reduceat(counts_bn * (1 - positive_n), starts, axis=1)
    return positive_bg, negative_bg


def _auroc(positive_bg: Floats, negative_bg: Floats) -> Floats:
    below_bg = negative_bg.cumsum(axis=1) - negative_bg / 2
    pairs_b = positive_bg.sum(axis=1) * negative_bg.sum(axis=1)
    return _divided((positive_bg * below_bg).sum(axis=1), pairs_b)


def _auprc(positive_bg: Floats, negative_bg: Floats) -> Floats:
    positive_bg, negative_bg = positive_bg[:, ::-1], negative_bg[:, ::-1]
    true_bg, false_bg = positive_bg.cumsum(axis=1), negative_bg.cumsum(axis=1)
    precision_bg = true_bg / np.maximum(true_bg + false_bg, 1)
    value_b = _divided((positive_bg * precision_bg).sum(axis=1), true_bg[:, -1])
    return np.where(false_bg[:, -1] > 0, value_b, np.nan)


def _divided(above: Floats, below: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


MEASURES: Mapping[str, str] = {
    "accuracy": "Accuracy",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier",
    "observed_expected": "O/E",
    "c_index": "C-index",
}
"""Name of a measure -> title."""
