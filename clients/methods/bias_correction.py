"""Bias correction (papers: wga-bias-correction, algorithm 3): WGA less the bias it has seen.

    x_i <- x_i - eta ((1 - alpha) g_i + alpha (g_avg - c_i)),    b = g_avg - g_i,
    c_i <- (1 - beta) c_i + beta b,    c_i = 0 at first; the step uses the c_i from before it.

Symbols: c_i `state.c`, beta `options.beta`; all others, targets and local steps as in
`coterie.clients.parts.asking`. With alpha = "auto", alpha* = N (2 - beta) / (2 (N + 1)) (the authors'
code).

Variant `bias = "oracle"` (theorem 2): c_i is the true bias at x_i, g on all training data without
noise, and each helper's share of it is observed with Gaussian noise of standard deviation
`oracle-noise` in every coordinate; alpha* as for beta = 0, which is best where the oracle has no
noise. Helpers answer with a second, full gradient: for theory, on synthetic problems.

Reading: a round in which nobody answers leaves c_i as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.asking import Asking, AskingRule, AskingState
from coterie.clients.rule import Floats, Grid

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


@dataclass(frozen=True)
class Options(Asking):
    """Bias correction's options.

    Attributes
    ----------
    beta : rate of the moving average in (0, 1].
    bias : "estimated" by the moving average, or the "oracle".
    oracle_noise : standard deviation of a helper's oracle.
    """

    beta: float = 0.05
    bias: Literal["estimated", "oracle"] = "estimated"
    oracle_noise: float = 0.0
    grid: ClassVar[Grid] = {"beta": (0.01, 0.05, 0.2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ValueError("beta must be above 0 and at most 1")
        if self.oracle_noise < 0:
            raise ValueError("oracle-noise must not be negative")
        if self.oracle_noise and self.bias != "oracle":
            raise ValueError('oracle-noise goes with bias = "oracle"')


@dataclass(frozen=True)
class BiasState(AskingState):
    """`c`: (P, d) what each peer believes its helpers' bias to be."""

    c: Tensor


class BiasCorrection(AskingRule[BiasState]):
    """Take the helpers' average where it would be without its usual distance from the own one."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._knows = options.bias == "oracle"

    def init(self) -> BiasState:
        first = self.first()
        return BiasState(**first, c=first["x"].new_zeros(first["x"].shape))

    def best_alpha(self, state: BiasState, round_: int, helpers_p: Ints) -> Floats:
        beta = 0.0 if self._knows else self.options.beta
        return helpers_p * (2 - beta) / (2 * (helpers_p + 1))

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        return super().answer_shapes(round_) | ({"truth": (self.engine.d,)} if self._knows else {})

    def answer(
        self, state: BiasState, round_: int, asked: Letters
    ) -> tuple[BiasState, Mapping[str, Tensor]]:
        state, answer = super().answer(state, round_, asked)
        if not self._knows:
            return state, answer
        truth_ed = self._truth(state, asked.each("x"), self.local(asked.recipients))
        if self.options.oracle_noise:
            ends = zip(asked.recipients.tolist(), asked.senders.tolist(), strict=True)
            streams = [stream(self.engine.seed, k, round_, Purpose.ESTIMATE, i) for k, i in ends]
            noise_ed = np.stack([g.standard_normal(self.engine.d) for g in streams])
            truth_ed = truth_ed + self.engine.tensor(self.options.oracle_noise * noise_ed)
        return state, {**answer, "truth": truth_ed}

    def correction(
        self, state: BiasState, round_: int, share_pn: Floats, answers: Letters
    ) -> Tensor:
        if not self._knows:
            return state.c
        mine_pd = self._truth(state, state.x, np.arange(len(state.x)))
        return self.answered(answers, "truth", share_pn) - mine_pd

    def learn(
        self, state: BiasState, round_: int, g_pd: Tensor, b_pd: Tensor, met_p: Bools
    ) -> BiasState:
        beta_p1 = self.engine.tensor((0.0 if self._knows else self.options.beta) * met_p[:, None])
        c_pd = (1 - beta_p1) * state.c + beta_p1 * b_pd
        return replace(super().learn(state, round_, g_pd, b_pd, met_p), c=c_pd)

    def _truth(self, state: BiasState, x_ed: Tensor, peers: Ints) -> Tensor:
        """Gradients on all of the peers' training data, without noise (E, d)."""
        whole = self.engine.data.everything(peers)
        return self.engine.gradients(x_ed, state.buffers_at(peers), whole).values
