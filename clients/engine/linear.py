"""Quadratic log likelihoods of models that are linear in their parameters.

With eta = Theta (1, x) and the scores z = C eta, a row's log likelihood is -loss(z, y) / scale. C
fixes what a softmax leaves open: the score of the first class is 0, so that Theta has log odds
against it. For numbers scale is 2 sigma^2, with sigma^2 the residual variance of least squares.
Legend: r = rows, m = inputs, k = scores, c = free scores, d = c (1 + m) parameters, of each score
the intercept first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from coterie.clients.engine.tasks import Task

Floats = npt.NDArray[np.float64]
_STEPS, _LONGEST, _PRECISION = 100, 4.0, 1e-10
"""Newton steps at most; largest entry of a step; entry of a step that ends them."""


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

    from coterie.clients.engine.stacked import derivatives

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
