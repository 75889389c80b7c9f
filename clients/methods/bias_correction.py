"""Bias correction (papers: wga-bias-correction, algorithm 3): WGA minus an estimate of its bias.

    x_i <- x_i - eta ((1 - alpha) g_i + alpha (g_avg - c_i)),    b = g_avg - g_i,
    c_i <- (1 - beta) c_i + beta b,    c_i = 0 at first; the step uses c_i before its update.

Symbols: c_i `state.c`, beta `options.beta`; other symbols, targets and local steps as in
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
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.asking import Asking, AskingRule, AskingState
from coterie.clients.rule import Floats, Grid
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


@dataclass(frozen=True)
class Options(Asking):
    """Options of bias correction.

    Attributes
    ----------
    beta : float
        Rate of the moving average in (0, 1].
    bias : {"estimated", "oracle"}
        "estimated" is the moving average, "oracle" the true bias.
    oracle_noise : float
        Standard deviation of the noise on a helper's part of the true bias.
    """

    beta: Annotated[float, Range(above=0, high=1)] = 0.05
    bias: Literal["estimated", "oracle"] = "estimated"
    oracle_noise: Annotated[float, Range(0)] = 0.0
    grid: ClassVar[Grid] = {"beta": (0.01, 0.05, 0.2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oracle_noise and self.bias != "oracle":
            raise ValueError('oracle-noise needs bias = "oracle"')


@dataclass(frozen=True)
class BiasState(AskingState):
    """State of bias correction.

    Attributes
    ----------
    c : Tensor, (P, d)
        Estimated bias of each peer's helpers.
    """

    c: Tensor


class BiasCorrection(AskingRule[BiasState]):
    """Bias correction: subtract the estimated bias from the helpers' average gradient."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._oracle = options.bias == "oracle"
        self._measures |= options.oracle_noise > 0 and options.alpha == "auto"

    def init(self) -> BiasState:
        first = self.first()
        return BiasState(**first, c=first["x"].new_zeros(first["x"].shape))

    def best_alpha(self, state: BiasState, round_: int, helpers_p: Ints) -> Floats:
        if not self._oracle:
            beta = self.options.beta
            alpha_p: Floats = helpers_p * (2 - beta) / (2 * (helpers_p + 1))
            return alpha_p
        noise = float(self.options.oracle_noise**2 * self.engine.d)
        with np.errstate(divide="ignore"):
            ratio_p: Floats = noise / state.variance if noise else np.zeros(len(helpers_p))
        best_p: Floats = helpers_p / (helpers_p + 1 + ratio_p)
        return best_p

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        return super().answer_shapes(round_) | ({"truth": (self.engine.d,)} if self._oracle else {})

    def answer(
        self, state: BiasState, round_: int, asked: Letters
    ) -> tuple[BiasState, Mapping[str, Tensor]]:
        state, answer = super().answer(state, round_, asked)
        if not self._oracle:
            return state, answer
        truth_ed = self._full_gradients(state, asked.each("x"), self.local(asked.recipients))
        if self.options.oracle_noise:
            ends = zip(asked.recipients.tolist(), asked.senders.tolist(), strict=True)
            streams = [stream(self.engine.seed, k, round_, Purpose.ESTIMATE, i) for k, i in ends]
            noise_ed = np.stack([g.standard_normal(self.engine.d) for g in streams])
            truth_ed = truth_ed + self.engine.tensor(self.options.oracle_noise * noise_ed)
        return state, {**answer, "truth": truth_ed}

    def correction(
        self, state: BiasState, round_: int, share_pn: Floats, answers: Letters
    ) -> Tensor:
        if not self._oracle:
            return state.c
        full_pd = self._full_gradients(state, state.x, np.arange(len(state.x)))
        return self.answered(answers, "truth", share_pn) - full_pd

    def learn(
        self, state: BiasState, round_: int, g_pd: Tensor, b_pd: Tensor, helped_p: Bools
    ) -> BiasState:
        beta = 0.0 if self._oracle else self.options.beta
        beta_p1 = self.engine.tensor(beta * helped_p[:, None])
        c_pd = (1 - beta_p1) * state.c + beta_p1 * b_pd
        return replace(super().learn(state, round_, g_pd, b_pd, helped_p), c=c_pd)

    def _full_gradients(self, state: BiasState, x_ed: Tensor, peers: Ints) -> Tensor:
        """Return the noise-free gradients (E, d) on all of the peers' training data."""
        whole = self.engine.data.everything(peers)
        return self.engine.gradients(x_ed, state.buffers_at(peers), whole).values
