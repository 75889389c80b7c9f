"""Weights on the probability simplex, {w >= 0, sum w = 1}: softmax, projection, programs."""

from __future__ import annotations

import numpy as np

from coterie.clients.letters import Bools, Floats

_ROUNDING = 1e-13  # relative to the largest entry of a matrix; of a weight, absolute
_STEPS = 10  # maximum number of steps per point; a few are enough


def softmax(score_pn: Floats, among_pn: Bools, sharpness: float = 1.0) -> Floats:
    """Return exp(sharpness * score), normalised over the finite scores in each row's mask, or 0."""
    finite_pn = np.isfinite(score_pn) & among_pn
    top_p1 = np.where(finite_pn, score_pn, -np.inf).max(axis=1, keepdims=True)
    away_pn = np.where(finite_pn, score_pn - np.where(np.isfinite(top_p1), top_p1, 0.0), 0.0)
    raw_pn = np.where(finite_pn, np.exp(sharpness * away_pn), 0.0)
    total_p1 = raw_pn.sum(axis=1, keepdims=True)
    return np.asarray(raw_pn / np.where(total_p1 > 0, total_p1, 1.0))


def highest(score_pn: Floats, k: int) -> Bools:
    """Return a mask of the k highest finite scores of each row; of equal ones, the first."""
    at_pk = np.argsort(-np.nan_to_num(score_pn, nan=-np.inf), axis=1, kind="stable")[:, :k]
    mask_pn = np.zeros(score_pn.shape, dtype=np.bool_)
    np.put_along_axis(mask_pn, at_pk, values=True, axis=1)
    return mask_pn & np.isfinite(score_pn)


def project_onto_simplex(rows_pn: Floats) -> Floats:
    """Project each row onto the simplex, in Euclidean distance (Held, Wolfe, Crowder 1974)."""
    descending = -np.sort(-rows_pn, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    count = np.arange(1, rows_pn.shape[1] + 1)
    support = (descending - excess / count > 0).sum(axis=1, keepdims=True)
    threshold = np.take_along_axis(excess, support - 1, axis=1) / support
    projected: Floats = np.maximum(rows_pn - threshold, 0.0)
    return projected


def minimise_on_simplex(matrix_nn: Floats) -> Floats:
    """Minimise a' P a over the probability simplex, for a positive semidefinite P.

    Wolfe, "Finding the nearest point in a polytope" (1976), with inner products only.
    """
    n = len(matrix_nn)
    tolerance = _ROUNDING * max(float(np.abs(matrix_nn.diagonal()).max()), np.finfo(float).tiny)
    support = [int(matrix_nn.diagonal().argmin())]
    a_n = np.zeros(n)
    a_n[support] = 1.0
    for _ in range(_STEPS * n):
        slopes_n = matrix_nn @ a_n
        best = int(slopes_n.argmin())
        if slopes_n[best] >= a_n @ slopes_n - tolerance or best in support:
            break
        support.append(best)
        while True:
            aim = _affine_minimum(matrix_nn[np.ix_(support, support)])
            if aim.min() > 0:
                a_n[support] = aim
                break
            now = a_n[support]
            down = aim <= 0
            step = (now[down] / np.maximum(now[down] - aim[down], np.finfo(float).tiny)).min()
            moved = np.maximum(now + min(step, 1.0) * (aim - now), 0.0)
            moved[down & (moved <= _ROUNDING)] = 0.0
            a_n[support] = moved
            support = [j for j, weight in zip(support, moved, strict=True) if weight > 0]
    return np.asarray(a_n / a_n.sum())


def _affine_minimum(matrix_kk: Floats) -> Floats:
    """Minimise a' P a subject to sum a = 1."""
    k = len(matrix_kk)
    system = np.ones((k + 1, k + 1))
    system[:k, :k], system[k, k] = matrix_kk, 0.0
    return np.asarray(np.linalg.lstsq(system, np.eye(k + 1)[k], rcond=None)[0][:k])
