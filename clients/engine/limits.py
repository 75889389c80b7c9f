"""Limits of another peer's scores in an ensemble: their range on the rows that chose its weight.

On a row unlike all held-out rows the scores of a member may be anything, so that a single leaf
could decide the prediction alone. Clipped to the range that they had there, they have the influence
that was tested. Softmax ignores a number that is added to all scores of a row, so that scores of
classes are compared after subtracting their mean.

Legend: m = members, r = rows, k = scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from coterie.clients.engine.tasks import Task

Floats = npt.NDArray[np.float64]
FINITE = 1e30
"""Limit of scores that only have to be finite."""
_ROUNDING = 1e-5  # relative; the same model's scores differ between formats and batches


def ranges(task: Task, outputs: Tensor) -> tuple[Floats, Floats]:
    """Return the lowest and highest scores (m, k) of the outputs (m, r, ..., k)."""
    scores_mrk = _comparable(task, outputs.detach().cpu().double()).flatten(1, -2)
    if not scores_mrk.shape[1]:
        wide = np.full((len(scores_mrk), scores_mrk.shape[2]), FINITE)
        return -wide, wide
    low_mk, high_mk = (each.nan_to_num() for each in (scores_mrk.amin(1), scores_mrk.amax(1)))
    more_mk = _ROUNDING * torch.maximum(low_mk.abs(), high_mk.abs())
    return (low_mk - more_mk).numpy(), (high_mk + more_mk).numpy()


def are_inside(task: Task, outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mark rows (..., 1) whose scores (..., k) are within limits that broadcast to them."""
    # Infinite limits hold everything, NaN too.
    scores = _comparable(task, outputs)
    return (((scores >= low) & (scores <= high)) | low.isinf()).all(dim=-1, keepdim=True)


def clipped(task: Task, outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the outputs, of rows beyond the limits the nearest scores within; 0 for NaN."""
    scores = _comparable(task, outputs)
    finite = torch.where(scores.isnan(), torch.zeros_like(scores), scores)
    nearest = torch.minimum(torch.maximum(finite, low), high)
    return torch.where(are_inside(task, outputs, low, high), outputs, nearest)


def _comparable(task: Task, outputs: Tensor) -> Tensor:
    return outputs - outputs.mean(dim=-1, keepdim=True) if task.ignores_shifts else outputs
