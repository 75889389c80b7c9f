"""Newton's method: quadratic log likelihoods of linear models, and ridge regression on scores.

With eta = Theta (1, x) and the scores z = C eta, a row's log likelihood is -loss(z, y) / scale. C
fixes what a softmax leaves open: the score of the first class is 0, so that Theta has log odds
against it. For numbers scale is 2 sigma^2, with sigma^2 the residual variance of least squares.
Legend: r = rows (of texts, positions), m = inputs, or models in `ridge`, k = scores, c = free
scores, d = c (1 + m) parameters, of each score the intercept first, q = m + k coefficients and
offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.clients.letters import Floats

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from coterie.clients.engine.tasks import Task

_STEPS, _LONGEST, _PRECISION = 100, 4.0, 1e-10
"""Newton steps at most; largest entry of a step; entry of a step that ends them."""
_HALVINGS = 40
_LARGEST = 1e4
"""Maximum size of a score, relative to the own model's, the targets and the unit."""


def contrast(kind: str, outputs: int) -> Floats:
    """Return C, (k, c), for a task."""
    c = np.eye(outputs)
    return c[:, 1:] if kind == "classification" else c


@dataclass(frozen=True)
class Quadratic:
    """Log likelihood -1/2 theta' H theta + b' theta + constant, near an estimate."""

    b: Floats  # gradient at 0, (d,)
    h: Floats  # curvature, (d, d)
    unit: float  # deviation of a regression's targets, in which theta is measured; else 1


def residual_deviation(inputs_rm: Floats, targets_r: npt.NDArray[Any]) -> float:
    """Return sigma of least squares; that of the targets if the rows leave less than they fit."""
    x_rj, y_rk = np.insert(inputs_rm, 0, 1, axis=1), targets_r.reshape(len(targets_r), -1)
    theta, _, rank, _ = np.linalg.lstsq(x_rj, y_rk, rcond=None)
    degrees = len(x_rj) - int(rank)
    residuals = y_rk - x_rj @ theta if degrees > rank else y_rk
    return float(np.sqrt((residuals**2).sum() / (max(degrees, 1) * y_rk.shape[1])))


def quadratic(
    task: Task, kind: str, inputs_rm: Floats, targets_r: npt.NDArray[Any], outputs: int,
    mean_d: Floats, precision_d: Floats,
) -> Quadratic:  # fmt: skip
    """Expand the log likelihood of rows at its maximum under the prior N(mean, 1 / precision).

    The prior only chooses the point of expansion; the likelihood is without it. Newton's method
    with bounded steps finds the point.
    """
    import torch  # methods load without it

    c_kc = contrast(kind, outputs)
    x_rj = np.hstack([np.ones((len(inputs_rm), 1)), inputs_rm])
    unit, scale = 1.0, 1.0
    if kind == "regression":
        unit = float(targets_r.std()) or 1.0
        targets_r = targets_r / unit
        scale = 2 * max(residual_deviation(inputs_rm, targets_r) ** 2, 1e-12)
    y = torch.from_numpy(np.asarray(targets_r))
    contrast_ck = torch.from_numpy(c_kc.T.copy())

    def losses(eta_rc: torch.Tensor) -> torch.Tensor:
        return task.losses((eta_rc @ contrast_ck)[None], y[None]).sum() / scale

    theta_d = mean_d.copy()
    for _ in range(_STEPS):
        eta_rc = x_rj @ theta_d.reshape(c_kc.shape[1], -1).T
        slope_rc, curvature_rcc = (
            each.numpy() for each in derivatives(losses, torch.from_numpy(eta_rc))
        )
        g_d = -(slope_rc.T @ x_rj).ravel()
        h_dd = np.einsum("rce,rj,rl->cjel", curvature_rcc, x_rj, x_rj, optimize=True)
        h_dd = h_dd.reshape(len(theta_d), -1)
        h_dd = (h_dd + h_dd.T) / 2
        step_d = np.linalg.solve(
            h_dd + np.diag(precision_d), g_d - precision_d * (theta_d - mean_d)
        )
        if np.abs(step_d).max() < _PRECISION:
            break
        theta_d = theta_d + step_d * min(1.0, _LONGEST / np.abs(step_d).max())
    return Quadratic(h_dd @ theta_d + g_d, h_dd, unit)


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
    import torch

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

    k = z.shape[-1]
    own_score = torch.eye(k, dtype=z.dtype)[:, None].expand(k, z[0].numel() // k, k)
    features = torch.cat([z.flatten(1, -2), own_score])  # (q, r, k), in which scores are linear

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


def derivatives(losses: Callable[[Tensor], Tensor], scores_rk: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (r, k) and each row's second derivatives (r, k, k)."""
    # The loss is a sum over rows, so that no second derivative mixes them.
    import torch

    with torch.enable_grad():
        leaf = scores_rk.detach().requires_grad_()
        (slope,) = torch.autograd.grad(losses(leaf), leaf, create_graph=True)
        columns = slope.sum(dim=0)
        bent = [torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in columns]
    return slope.detach(), torch.stack(bent, dim=1)
