"""Bias correction (papers: wga-bias-correction, algorithm 3): WGA minus an estimate of its bias.

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
from coterie.clients.parts.asking import AskingRule, AskingState
from coterie.ranges import option


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
