"""Ridge regression on the scores of models: Newton's method on a convex loss.

Legend: m = models, r = rows (of texts, positions), k = scores, q = m + k coefficients and offsets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clients.engine.tasks import Task

Floats = npt.NDArray[np.float64]
_STEPS, _HALVINGS = 100, 40
_LARGEST = 1e4
"""Maximum size of a score, relative to the own model's, the targets and the unit."""


def ridge(
    task: Task,
    outputs: Tensor,
    targets: Tensor,
    strength: float,
    scale: Callable[[Floats], float] = lambda losses: 1.0,
    base: Tensor | None = None,
) -> tuple[Floats, Floats]:
    """Return coefficients (m,) and offsets (k,) that minimise the penalised sum of losses.

    The outputs are (m, r, ..., k), those of the peer's own model first; the penalty is at its
    coefficient 1. They are added to `base`, (r, ..., k), if given. Losses are divided by `scale` of
    the own model's losses (r, ...); if these are squares, the root is the unit of numbers, so that
    scores, targets and base in other units give the same coefficients. A model with outputs that
    are not finite, or 1e4 times as large as the own model's, targets and unit, gets coefficient 0.
    """
    z = outputs.detach().cpu().double()
    y = targets.cpu()
    if y.is_floating_point():
        y = y.double()
    start = torch.zeros_like(z[0]) if base is None else base.detach().cpu().double()
    finite = z.isfinite().flatten(1).all(dim=1)
    z[~finite] = 0.0
    unit = scale(task.losses(start + z[:1], y[None]).numpy()) ** 0.5
    if unit != 1:
        z, y, start = z / unit, y / unit, start / unit
    sizes = (z[0], y) if y.is_floating_point() else (z[0],)
    largest = max(1.0, *(float(each.abs().max()) for each in sizes))
    sound = finite & (z.abs() <= _LARGEST * largest).flatten(1).all(dim=1)
    z[~sound] = 0.0
    target = torch.zeros(len(z) + z.shape[-1], dtype=torch.float64)
    target[0] = 1.0

    features = torch.cat([z.flatten(1, -2), _per_score(z)])  # (q, r, k), in which scores are linear

    def losses(scores: Tensor) -> Tensor:
        return task.losses((start + scores.view_as(start))[None], y[None]).sum()

    def objective(theta: Tensor) -> Tensor:
        scores = torch.tensordot(theta, features, dims=1)
        return losses(scores) + strength / 2 * (theta - target).square().sum()

    ridge_qq = strength * torch.eye(len(target), dtype=torch.float64)
    theta, value = target, objective(target)
    for _ in range(_STEPS):
        slope_rk, curvature_rkk = derivatives(losses, torch.tensordot(theta, features, dims=1))
        slope = torch.tensordot(features, slope_rk, dims=2) + strength * (theta - target)
        bent = torch.einsum("qrk,rkl->qrl", features, curvature_rkk)
        curvature = torch.tensordot(bent, features, dims=([1, 2], [1, 2])) + ridge_qq
        step = torch.linalg.solve(curvature, slope)
        if not float(slope @ step) > 1e-12 * (1 + abs(float(value))):
            break
        length = 1.0
        for _ in range(_HALVINGS):
            new = theta - length * step
            after = objective(new)
            if after <= value - length / 4 * (slope @ step):
                break
            length /= 2
        else:
            break
        theta, value = new, after
    v = theta[: len(z)] * sound
    return v.numpy(), unit * theta[len(z) :].numpy()


def _per_score(z: Tensor) -> Tensor:
    """Return the features of the offsets (k, r, k): 1 for their own score."""
    k = z.shape[-1]
    one_hot = torch.eye(k, dtype=z.dtype)
    return one_hot[:, None].expand(k, z[0].numel() // k, k)


@torch.enable_grad()
def derivatives(losses: Callable[[Tensor], Tensor], scores_rk: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (r, k) and each row's second derivatives (r, k, k)."""
    # The loss is a sum over rows, so that no second derivative mixes them.
    leaf = scores_rk.detach().requires_grad_()
    (slope,) = torch.autograd.grad(losses(leaf), leaf, create_graph=True)
    columns = slope.sum(dim=0)
    bent = [torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in columns]
    return slope.detach(), torch.stack(bent, dim=1)
