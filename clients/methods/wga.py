"""WGA: weighted gradient averaging (papers: wga-bias-correction, algorithm 2).

Every peer, or each of `targets`, is the paper's user 0 and asks the others, its helpers:

    x_i <- x_i - eta ((1 - alpha) g_i(x_i) + alpha g_avg(x_i)),   g_avg = sum_k s_ik g_k(x_i).

Symbols: x_i `state.x`, eta the learning rate, N the number of helpers that answered;
`coterie.clients.parts.asking` explains s_ik, the estimates of zeta^2 and sigma^2, and several local
steps. With alpha = "auto" it is the alpha in [0, min(1, 1 / sqrt m)) that minimises the bound of
theorem 1 (PL case), for a bias of |grad f_avg - grad f_0|^2 <= m |grad f_0|^2 + zeta^2 (assumption
A4), m `bias_growth`. Relative to training alone it is

    ((1 - alpha)^2 + alpha^2 / N) / (1 - m alpha^2)^2 + kappa alpha^2 / (1 - m alpha^2),
    kappa = mu T zeta^2 / (L sigma^2),

T the run's rounds, mu / L `curvature_ratio`. A step of size eta <= 1 / L multiplies the excess loss
by 1 - eta mu (1 - m alpha^2) and adds eta alpha^2 zeta^2 / 2 and L eta^2 s^2 / 2, where s^2 =
((1 - alpha)^2 + alpha^2 / N) sigma^2; eta = ln T / (mu (1 - m alpha^2) T) gives the bound, up to
ln T. alpha* is the root of a cubic, `best_alpha`; for bounded bias (m = 0) 1 / (1 + 1/N + kappa)
with speed-up 1 / (1 - alpha*); for many helpers without bias at the optimum (N infinite, zeta = 0)
min(1, 1 - sqrt(1 - 1/m)).

Readings: the published text lost the formulas; these are derived, and those of the authors'
notebook (elmahdichayti/LinSpeedUpCode@a43973b). The speed-up is one of bounds: it is larger than
that of the losses where the bias slows the user down most (helpers with 1 - sqrt m times its loss).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from coterie.clients.hints import Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.parts.asking import ALPHA, AskingRule, AskingState
from coterie.ranges import option


class Wga(AskingRule[AskingState], group="helpers", true_clusters={"helpers": "cluster"}):
    """Averages its gradient with the helpers'."""

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
            return best_alpha(helpers_p, ratio_p, self.bias_growth)

    def correction(self, s: AskingState, share_pn: Floats, inbox: Inbox) -> Tensor:
        return s.x.new_zeros(())

    def squared_bias(self, g_pd: Tensor, b_pd: Tensor, last: Mapping[str, Tensor]) -> Tensor:
        bounded = super().squared_bias(g_pd, b_pd, last)
        if not self.bias_growth:
            return bounded
        return bounded - self.bias_growth * self.engine.inner(g_pd, last["g"])


def relative_bound(alpha: Floats, helpers: Floats, bias: Floats, growth: float) -> Floats:
    """Return theorem 1's bound relative to training alone; arguments as of `best_alpha`."""
    slowed = 1 - growth * alpha**2
    result: Floats = ((1 - alpha) ** 2 + alpha**2 / helpers) / slowed**2 + bias * alpha**2 / slowed
    return result


def best_alpha(helpers: Floats | Ints, bias: Floats, growth: float) -> Floats:
    """Return the alpha that minimises `relative_bound`.

    It is the only root in [0, min(1, 1 / sqrt m)] of the cubic that the derivative is proportional
    to, which increases through it: bisection finds it. `helpers` are N, 0 for none, `bias` kappa
    and `growth` m of the module's header.
    """
    total = 1 + 1 / helpers
    if not growth:
        return np.asarray(1 / (total + bias))
    low = np.zeros(np.broadcast(helpers, bias).shape)
    high = low + min(1.0, growth**-0.5)
    for _ in range(60):  # to the last bit
        a = (low + high) / 2
        cubic = (total + 2 * growth - 3 * growth * a + growth * total * a**2) * a - 1
        cubic += bias * a * (1 - growth * a**2)
        low, high = np.where(cubic < 0, a, low), np.where(cubic < 0, high, a)
    return low
