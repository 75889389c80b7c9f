"""WGA: weighted gradient averaging (papers: wga-bias-correction, algorithm 2).

Every peer, or each of `targets`, is the paper's user 0 and asks the others, its helpers:

    x_i <- x_i - eta ((1 - alpha) g_i(x_i) + alpha g_avg(x_i)),   g_avg = sum_k s_ik g_k(x_i).

Symbols: x_i `state.x`, eta the learning rate, N the number of helpers that answered;
`coterie.clients.parts.asking` explains s_ik, the estimates of zeta^2 and sigma^2, and several local
steps. With alpha = "auto" it is the alpha that minimises the bound of theorem 1, for a bias of
|grad f_avg - grad f_0|^2 <= m |grad f_0|^2 + zeta^2 (assumption A4), m `bias_growth`:

    ((1 - alpha)^2 + alpha^2 c) / (1 - m alpha^2),    c = 1/N + mu T zeta^2 / (L sigma^2),

    alpha* = 2 / (s + sqrt(s^2 - 4 m)),    s = 1 + c + m,

T the run's rounds, mu / L `curvature_ratio`. For bounded bias (m = 0) alpha* = 1 / (1 + c);
without bias at the optimum (zeta = 0) and many helpers it is min(1, 1/m). The bound relative to
training alone is 1 - alpha* for every m, so the speed-up is 1 / (1 - alpha*).

Reading: the published text lost the formulas for m > 0; the above is the minimum of the bound that
its sentences describe (alpha at most 1/m, a denominator that makes the speed-up sub-linear).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from coterie.clients.inbox import Inbox
from coterie.clients.letters import Ints
from coterie.clients.parts.asking import ALPHA, AskingRule, AskingState
from coterie.clients.rule import Floats
from coterie.ranges import option

if TYPE_CHECKING:
    from torch import Tensor


class Wga(
    AskingRule[AskingState], group="helpers", told_truth={"helpers": "cluster"},
    summary="averages its gradient with the helpers'",
):  # fmt: skip
    """WGA: weighted average of the peer's gradient and its helpers', to reduce the variance."""

    measuring = True

    alpha: float | Literal["auto"] = option("auto", ALPHA, low=0, high=1, grid=("auto", 0.25, 0.75))
    curvature_ratio: float = option(
        1.0, 'Ratio mu / L of strong convexity to smoothness in (0, 1], for alpha = "auto".',
        above=0, high=1,
    )  # fmt: skip
    bias_growth: float = option(
        0.0,
        "Growth m of the helpers' squared bias with the peer's squared gradient, for alpha = "
        '"auto"; 0 for bounded bias. Helpers with s times the peer\'s loss have (1 - s)^2.',
        low=0,
    )

    def best_alpha(self, s: AskingState, t: int, helpers_p: Ints) -> Floats:
        if t < 3:  # no estimates yet
            return np.zeros(len(helpers_p))
        bias_p = self.curvature_ratio * self.rounds * np.maximum(s.zeta2, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio_p = np.where(bias_p > 0, bias_p / s.variance, 0.0)
            return best_alpha(1 + 1 / helpers_p + ratio_p, self.bias_growth)

    def correction(self, s: AskingState, share_pn: Floats, inbox: Inbox) -> Tensor:
        return s.x.new_zeros(())

    def squared_bias(self, g_pd: Tensor, b_pd: Tensor, last: Mapping[str, Tensor]) -> Tensor:
        bounded = super().squared_bias(g_pd, b_pd, last)
        if not self.bias_growth:
            return bounded
        return bounded - self.bias_growth * self.engine.inner(g_pd, last["g"])


def best_alpha(curvature: Floats, growth: float) -> Floats:
    """Return the alpha that minimises (1 - 2 alpha + curvature alpha^2) / (1 - growth alpha^2).

    Parameters
    ----------
    curvature : ndarray
        1 + c of the module's header; infinite where there are no helpers.
    growth : float
        m of assumption A4.
    """
    total = curvature + growth
    result: Floats = 2 / (total + np.sqrt(total**2 - 4 * growth))
    return result
