"""Leakage: what a letter tells about the examples of its sender, by attacks of the sender itself.

Membership: training examples have smaller losses than held-out ones. "threshold" ranks examples by
loss (Yeom et al. 2018); "ratio" is the likelihood ratio without shadow models: the rank of an
example within the normal distribution of held-out examples of its class, on the scale of log odds
(the offline attack of Carlini et al. 2022 trains models without each example). Results are the area
under the ROC curve and the share of members found with 1 % false alarms. Units are groups
(patients) where examples have groups; a unit's score is its mean.

Legend: n = examples, u = units, t = trees, v = nodes, m = columns, j = candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.clients.diagnostics import auroc, wilson
from coterie.clients.letters import Bools, Floats, Ints

FALSE_ALARMS = 0.01
"""Share of the held-out units that are taken for members."""
Estimate = list[float]
"""Value and the ends of its 95 % interval."""
TREE = ("feature", "threshold", "left")
"""Arrays of `coterie.clients.models.fitted.Trees` that decide where a row goes."""
_Z = 1.959963984540054  # 97.5th percentile of the normal distribution
_ENOUGH = 5  # minimum number of held-out examples of a class for a distribution of its own
_EXACT = 1e-3  # distance of a read-off row, in typical distances of a row from the mean


def evidence(losses_n: Floats, *, bounded: bool) -> Floats:
    """Return the evidence for membership: log odds of the label, or minus the log of the loss."""
    # `bounded`: the loss is minus the log of a probability.
    clipped_n = np.clip(losses_n, 1e-12, 500)
    return -np.log(np.expm1(clipped_n) if bounded else clipped_n)


def membership(
    evidence_n: Sequence[Floats], classes_n: Sequence[Ints], groups_n: Sequence[Ints]
) -> dict[str, Any]:
    """Return the results of the attacks on members and held-out examples, both in this order.

    "tpr" is None with too few units for 1 % of them. Empty where the evidence is not finite.
    """
    if not all(len(e_n) and np.isfinite(e_n).all() for e_n in evidence_n):
        return {}
    ratios = _standardised(evidence_n, classes_n)
    result: dict[str, Any] = {}
    for name, scores_n in (("threshold", evidence_n), ("ratio", ratios)):
        member_u, other_u = map(_of_units, scores_n, groups_n)
        result |= {"members": len(member_u), "held_out": len(other_u)}
        result[name] = {"auc": auc(member_u, other_u), "tpr": found(member_u, other_u)}
    return result


def auc(member_u: Floats, other_u: Floats) -> Estimate:
    """Return the chance that a member scores above another unit, ties 1/2.

    The interval is that of Hanley and McNeil (1982), inverted, with Newcombe's (2006) mean of both
    numbers of units.
    """
    m, n = len(member_u), len(other_u)
    value = auroc(np.concatenate([member_u, other_u]), np.arange(m + n) < m)
    a = np.linspace(0, 1, 4001)
    spread = (1 - a) / (2 - a) + a / (1 + a)
    variance = a * (1 - a) / (m * n) * (1 + ((m + n) / 2 - 1) * spread)
    inside = a[np.abs(a - value) <= _Z * np.sqrt(variance) + 1 / len(a)]
    return [value, min(value, float(inside[0])), max(value, float(inside[-1]))]


def found(member_u: Floats, other_u: Floats) -> Estimate | None:
    """Return the share of members above all but 1 % of the others, with Wilson's interval."""
    alarms = int(FALSE_ALARMS * len(other_u))
    return [*wilson(member_u > np.sort(other_u)[-alarms - 1])] if alarms else None


def _standardised(evidence_n: Sequence[Floats], classes_n: Sequence[Ints]) -> list[Floats]:
    """Return evidence relative to mean and deviation of the held-out examples of a class."""
    result = [e_n.copy() for e_n in evidence_n]
    for k in np.unique(np.concatenate(classes_n)):
        of_class = evidence_n[1][classes_n[1] == k]
        known = of_class if len(of_class) >= _ENOUGH else evidence_n[1]
        for e_n, of_n in zip(result, classes_n, strict=True):
            at = of_n == k
            e_n[at] = (e_n[at] - known.mean()) / max(float(known.std()), 1e-12)
    return result


def _of_units(scores_n: Floats, groups_n: Ints) -> Floats:
    of_n = np.unique(groups_n, return_inverse=True)[1]
    return np.asarray(np.bincount(of_n, scores_n) / np.bincount(of_n))


def units(mask_n: Bools, groups_n: Ints | None) -> int:
    """Return the number of units that have one of the marked examples."""
    return int(mask_n.sum()) if groups_n is None else len(np.unique(groups_n[mask_n]))


def leaves(tree: Mapping[str, Floats], rows_nm: Floats, groups_n: Ints | None = None) -> list[int]:
    """Return the number of units in each leaf that has any; arrays (t, v) of trees by name."""
    rows_nm, every, counts = rows_nm.astype(np.float32), np.arange(len(rows_nm)), list[int]()
    for feature_v, threshold_v, left_v in zip(*(tree[k] for k in TREE), strict=True):
        at_n = np.zeros(len(rows_nm), dtype=np.int64)
        while (inner_n := left_v[at_n] > 0).any():
            is_right_n = rows_nm[every, feature_v[at_n].astype(int)] > threshold_v[at_n]
            at_n = np.where(inner_n, left_v[at_n].astype(int) + is_right_n, at_n)
        counts += [units(at_n == leaf, groups_n) for leaf in np.unique(at_n)]
    return counts


def thresholds(tree: Mapping[str, Floats], rows_nm: Floats) -> float:
    """Return the share of thresholds at a value or midpoint of rows, without binary columns."""
    feature, threshold, left = (tree[k] for k in TREE)
    hits = []
    for column, value in zip(feature[left > 0].astype(int), threshold[left > 0], strict=True):
        values = np.unique(rows_nm[:, column].astype(np.float32).astype(np.float64))
        if len(values) > 2:
            cuts = np.concatenate([values, (values[:-1] + values[1:]) / 2])
            hits.append(bool((np.abs(cuts - value) <= 1e-5).any()))
    return float(np.mean(hits)) if hits else 0.0


def readable(weight_jm: Floats, bias_j: Floats, rows_nm: Floats, groups_n: Ints | None) -> int:
    """Return the number of units with a row that the gradient of a first layer contains.

    A unit that one example a alone activates has the gradient g a' of its weights, g of its offset.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        candidates_jm = weight_jm / bias_j[:, None]
    candidates_jm = candidates_jm[np.isfinite(candidates_jm).all(axis=1)]
    typical = float(np.median(np.linalg.norm(rows_nm - rows_nm.mean(axis=0), axis=1)))
    hit_n = np.zeros(len(rows_nm), dtype=np.bool_)
    for row_m in candidates_jm:
        hit_n |= np.linalg.norm(rows_nm - row_m, axis=1) <= _EXACT * typical
    return units(hit_n, groups_n)


def differing(rows_nm: Floats, groups_n: Ints | None = None) -> Ints:
    """Return the number of units that differ from the most common value of each column, (m,)."""
    counts = []
    for column_n in rows_nm.T:
        values, times = np.unique(column_n, return_counts=True)
        counts.append(units(column_n != values[times.argmax()], groups_n))
    return np.array(counts, dtype=np.int64)


def curved(letter: Floats, columns: int) -> Bools:
    """Mark the columns (m,) that a letter of partial pooling has a curvature of."""
    d = math.isqrt(2 * len(letter)) - 1  # d + d (d + 1) / 2 + 2 entries
    if d * (d + 3) // 2 + 2 != len(letter) or d % (columns + 1):
        return np.zeros(columns, dtype=np.bool_)  # of other inputs than the examples'
    slopes = letter[d + np.cumsum(np.arange(1, d + 1)) - 1].reshape(-1, columns + 1)[:, 1:]
    return np.asarray((slopes > 0).any(axis=0))


def worst(measured: Mapping[str, Any], name: str) -> Estimate | None:
    """Return the estimate "auc" or "tpr" of the attack with the larger lower end."""
    known = [measured[attack][name] for attack in ("threshold", "ratio") if attack in measured]
    return max(filter(None, known), key=lambda estimate: estimate[1], default=None)
