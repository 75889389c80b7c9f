"""Projection onto the probability simplex, {w >= 0, sum w = 1}."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def project_onto_simplex(rows_pn: Floats) -> Floats:
    """Project each row onto the simplex, in Euclidean distance (Held, Wolfe, Crowder 1974)."""
    descending = -np.sort(-rows_pn, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    count = np.arange(1, rows_pn.shape[1] + 1)
    support = (descending - excess / count > 0).sum(axis=1, keepdims=True)
    threshold = np.take_along_axis(excess, support - 1, axis=1) / support
    projected: Floats = np.maximum(rows_pn - threshold, 0.0)
    return projected
