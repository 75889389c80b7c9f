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

Bias correction (papers: wga-bias-correction, algorithm 3): WGA minus an estimate of its bias.

    x_i <- x_i - eta ((1 - alpha) g_i + alpha (g_avg - c_i)),    b = g_avg - g_i,
    c_i <- (1 - beta) c_i + beta b,    c_i = 0 at first; the step uses c_i before its update.

Symbols: c_i `state.c`, beta `beta`; other symbols, targets and local steps as in
`coterie.clients.parts.asking`. With alpha = "auto", alpha* = N (2 - beta) / (2 (N + 1)) (the
authors' code).

Variant `bias = "oracle"` (theorem 2): c_i is the true bias at x_i, from noise-free gradients on all
training data, where each helper's part is observed with Gaussian noise of standard deviation
`oracle-noise` per coordinate, v^2 in total. alpha* minimises the step's variance (1 - alpha)^2
sigma^2 + alpha^2 (sigma^2 + v^2) / N (section 5.1):

    alpha* = N / (N + 1 + v^2 / sigma^2),

N / (N + 1) for v = 0, and 0 for a peer without noise. Helpers answer with a second, full gradient:
for theory, on synthetic problems.

Reading: a round without answers leaves c_i unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.hints import Bools, Floats, Ints, Tensor
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


@dataclass(frozen=True)
class BiasState(AskingState):
    """State of bias correction."""

    c: Tensor  # estimated bias of each peer's helpers, (P, d)


class BiasCorrection(
    AskingRule[BiasState], group="helpers", true_clusters={"helpers": "cluster", "bias": "oracle"}
):
    """WGA less the helpers' bias, which it learns."""

    beta: float = option(
        0.05, "Rate of the moving average in (0, 1].", above=0, high=1, grid=(0.01, 0.05, 0.2)
    )
    bias: Literal["estimated", "oracle"] = option(
        "estimated", '"estimated" is the moving average, "oracle" the true bias.'
    )
    oracle_noise: float = option(
        0.0, "Standard deviation of the noise on a helper's part of the true bias.", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oracle_noise and self.bias != "oracle":
            raise ValueError('oracle-noise needs bias = "oracle"')

    @property
    def measures(self) -> bool:
        return super().measures or (self.oracle_noise > 0 and self.alpha == "auto")

    @property
    def knows(self) -> bool:
        """True if c_i is the true bias."""
        return self.bias == "oracle"

    def init(self) -> BiasState:
        start = self.start()
        return self.first(start, c=start.x.new_zeros(start.x.shape))

    def best_alpha(self, s: BiasState, t: int, helpers_p: Ints) -> Floats:
        if not self.knows:
            return np.asarray(helpers_p * (2 - self.beta) / (2 * (helpers_p + 1)))
        noise = float(self.oracle_noise**2 * self.engine.d)
        with np.errstate(divide="ignore"):
            ratio_p: Floats = noise / s.variance if noise else np.zeros(len(helpers_p))
        return np.asarray(helpers_p / (helpers_p + 1 + ratio_p))

    def answer_shapes(self, t: int) -> dict[str, tuple[int, ...]]:
        return super().answer_shapes(t) | ({"truth": (self.engine.d,)} if self.knows else {})

    def answer(self, s: BiasState, asked: Inbox) -> Mapping[str, Tensor]:
        answer = super().answer(s, asked)
        if not self.knows:
            return answer
        truth_ed = self._full_gradients(s, asked.offers.each("x"), asked.peer)
        if self.oracle_noise:
            ends = zip(asked.offers.recipients.tolist(), asked.senders.tolist(), strict=True)
            seed = self.engine.seed
            streams = [stream(seed, k, asked.round, Purpose.ESTIMATE, i) for k, i in ends]
            noise_ed = np.stack([g.standard_normal(self.engine.d) for g in streams])
            truth_ed = truth_ed + self.engine.tensor(self.oracle_noise * noise_ed)
        return {**answer, "truth": truth_ed}

    def correction(self, s: BiasState, share_pn: Floats, inbox: Inbox) -> Tensor:
        if not self.knows:
            return s.c
        full_pd = self._full_gradients(s, s.x, np.arange(len(s.x)))
        return inbox.answered("truth", share_pn) - full_pd

    def learn(self, s: BiasState, t: int, g_pd: Tensor, b_pd: Tensor, helped_p: Bools) -> BiasState:
        beta = 0.0 if self.knows else self.beta
        beta_p1 = self.engine.tensor(beta * helped_p[:, None])
        c_pd = (1 - beta_p1) * s.c + beta_p1 * b_pd
        return replace(super().learn(s, t, g_pd, b_pd, helped_p), c=c_pd)

    def _full_gradients(self, s: BiasState, x_ed: Tensor, peers: Ints) -> Tensor:
        """Return the noise-free gradients (E, d) on all of the peers' training data."""
        whole = self.engine.data.everything(peers)
        return self.engine.gradients(x_ed, s.buffers_at(peers), whole).values
