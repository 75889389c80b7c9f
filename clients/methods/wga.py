"""WGA: weighted gradient averaging (papers: wga-bias-correction, algorithm 2).

Every peer, or each of `targets`, is the paper's user 0 and asks the others, its helpers:

    x_i <- x_i - eta ((1 - alpha) g_i(x_i) + alpha g_avg(x_i)),   g_avg = sum_k s_ik g_k(x_i).

Symbols: x_i `state.x`, eta the learning rate, N the number of helpers that answered;
`coterie.clients.parts.asking` explains s_ik, the estimates of zeta^2 and sigma^2, and several local
steps. With alpha = "auto" (from theorem 1, for bounded bias, m = 0)

    alpha* = 1 / (1 + 1/N + mu T zeta^2 / (L sigma^2)),

T the run's rounds, mu / L `options.curvature_ratio`.
"""

from __future__ import annotations

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
    """

    curvature_ratio: Annotated[float, Range(above=0, high=1)] = 1.0
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
            return 1 / (1 + 1 / helpers_p + ratio_p)

    def correction(
        self, state: AskingState, round_: int, share_pn: Floats, answers: Letters
    ) -> Tensor:
        return state.x.new_zeros(())
