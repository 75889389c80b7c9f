"""WGA: weighted gradient averaging (papers: wga-bias-correction, algorithm 2).

Every peer, or each of `targets`, is the paper's user 0 and asks the others, its helpers:

    x_i <- x_i - eta ((1 - alpha) g_i(x_i) + alpha g_avg(x_i)),   g_avg = sum_k s_ik g_k(x_i).

Symbols: x_i `state.x`, eta the learning rate, N the number of helpers that answered;
`coterie.clients.parts.asking` explains s_ik, the estimates of zeta^2 and sigma^2, and several local
steps. With alpha = "auto" it is the alpha that minimises the bound of theorem 1, for a bias of
|grad f_avg - grad f_0|^2 <= m |grad f_0|^2 + zeta^2 (assumption A4), m `options.bias_growth`:

    ((1 - alpha)^2 + alpha^2 c) / (1 - m alpha^2),    c = 1/N + mu T zeta^2 / (L sigma^2),

    alpha* = 2 / (s + sqrt(s^2 - 4 m)),    s = 1 + c + m,

T the run's rounds, mu / L `options.curvature_ratio`. For bounded bias (m = 0) alpha* = 1 / (1 + c);
without bias at the optimum (zeta = 0) and many helpers it is min(1, 1/m). The bound relative to
training alone is 1 - alpha* for every m, so the speed-up is 1 / (1 - alpha*).

Reading: the published text lost the formulas for m > 0; the above is the minimum of the bound that
its sentences describe (alpha at most 1/m, a denominator that makes the speed-up sub-linear).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from coterie.clients.letters import Ints, Letters
from coterie.clients.parts.asking import Asking, AskingRule, AskingState
from coterie.clients.rule import Floats, Grid
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options(Asking):
    """Options of WGA.

    Attributes
    ----------
    curvature_ratio : float
        Ratio mu / L of strong convexity to smoothness in (0, 1], for alpha = "auto".
    bias_growth : float
        Growth m of the helpers' squared bias with the peer's squared gradient, for alpha = "auto";
        0 for bounded bias. Helpers with s times the peer's loss have (1 - s)^2.
    """

    curvature_ratio: Annotated[float, Range(above=0, high=1)] = 1.0
    bias_growth: Annotated[float, Range(0)] = 0.0
    grid: ClassVar[Grid] = {"alpha": ("auto", 0.25, 0.75)}


class Wga(AskingRule[AskingState]):
    """WGA: weighted average of the peer's gradient and its helpers', to reduce the variance."""

    measuring = True

    def init(self) -> AskingState:
        return AskingState(**self.first())

    def best_alpha(self, state: AskingState, round_: int, helpers_p: Ints) -> Floats:
        if round_ < 3:  # no estimates yet
            return np.zeros(len(helpers_p))
        bias_p = self.options.curvature_ratio * self.rounds * np.maximum(state.zeta2, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio_p = np.where(bias_p > 0, bias_p / state.variance, 0.0)
            return best_alpha(1 + 1 / helpers_p + ratio_p, self.options.bias_growth)

    def correction(
        self, state: AskingState, round_: int, share_pn: Floats, answers: Letters
    ) -> Tensor:
        return state.x.new_zeros(())

    def squared_bias(self, g_pd: Tensor, b_pd: Tensor, last: Mapping[str, Tensor]) -> Tensor:
        bounded = super().squared_bias(g_pd, b_pd, last)
        growth: float = self.options.bias_growth
        if not growth:
            return bounded
        return bounded - growth * self.engine.inner(g_pd, last["g"])


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
