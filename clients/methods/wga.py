"""WGA and bias correction: peers ask helpers for gradients at their model.

Every target, user 0 of the paper (wga-bias-correction), has its neighbours as helpers. They answer
with a gradient at its model, and it descends a mixture of its gradient and theirs,

    (1 - alpha) g_i(x_i) + alpha (g_avg(x_i) - c_i),   g_avg = sum_k s_ik g_k(x_i).

Symbols: c_i `AskingRule.correction`, s_ik `share_pn` (1/N, or proportional to 1/sigma_k^2: footnote
1), alpha `alpha`. Where an option needs them, a peer estimates sigma^2 and its helpers'
bias from two consecutive rounds, whose noise is independent: |g_t - g_t-1|^2 / 2 has mean sigma^2
and <b_t, b_t-1>, b = g_avg - g_i, has mean |bias|^2, up to the model's change between the rounds.
Problems that state their noise (quadratic ones) need no estimate of sigma.

Readings and deviations: peers that are not targets train alone, as does a target in a round without
answers; shares are normalised over the helpers that answered. The paper asks after each step; with
several `local-steps` the helpers' average is corrected by the change of the peer's own gradient
(`coterie.clients.parts.helper_gradients`): a step descends (1 - alpha) g_i(x) + alpha (g_avg(x0) +
g_i(x) - g_i(x0)), and a round has the noise of as many of the paper's steps.

WGA: weighted gradient averaging (papers: wga-bias-correction, algorithm 2).

    x_i <- x_i - eta ((1 - alpha) g_i(x_i) + alpha g_avg(x_i))

Symbols: x_i `state.x`, eta the learning rate, N the number of helpers that answered. With alpha =
"auto" it is the alpha in [0, min(1, 1 / sqrt m)) that minimises the bound of
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

Symbols: c_i `state.c`, beta `beta`. With alpha = "auto", alpha* = N (2 - beta) / (2 (N + 1)) (the
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
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.hints import Bools, Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.parts.helper_gradients import corrected, gradients_at, mean_over_steps
from coterie.clients.rule import Rule, State, Weighted
from coterie.ranges import option
from coterie.strategies.plans import WantedHelp

ALPHA = "Weight of the helpers' average in [0, 1]; \"auto\" is the paper's optimum."


@dataclass(frozen=True)
class AskingState(Weighted):
    """State of a rule that asks for gradients; `w` has the weights of the last step."""

    variance: Floats  # estimate of sigma_i^2, (P,); 0 if not needed
    zeta2: Floats  # estimate of the helpers' squared bias, (P,); 0 if not needed
    last: dict[str, Tensor]  # gradient "g" and bias "b" of the last round, (P, d); or empty


S = TypeVar("S", bound=AskingState)


class AskingRule(Rule[S], strategy=WantedHelp):
    """Rule that descends a mixture of the peer's gradient and its helpers' answers."""

    measuring: ClassVar[bool] = False
    """With alpha = "auto" the rule needs estimates of sigma^2 and zeta^2."""

    targets: str = option(
        "all", 'Peers that ask for gradients, "all" or ids like "0,3"; the others train alone.'
    )
    weights_: Literal["uniform", "inverse-variance"] = option(
        "uniform",
        "Weights of the helpers in their average: equal, or by the variance of their gradients.",
    )
    alpha: float | Literal["auto"] = option("auto", ALPHA, low=0, high=1)

    def __post_init__(self) -> None:
        if self.targets != "all" and not all(i.isdecimal() for i in self.targets.split(",")):
            raise ValueError(f'targets must be "all" or ids like "0,3", not "{self.targets}"')

    def asking(self, peers: int) -> list[int]:
        """Return the targets among `peers` peers."""
        return [*range(peers)] if self.targets == "all" else [*map(int, self.targets.split(","))]

    def check(self, config: Any) -> None:
        if max(self.asking(config.peers)) >= config.peers:
            raise ValueError(f'targets = "{self.targets}", but peers are 0 to {config.peers - 1}')

    @property
    def by_variance(self) -> bool:
        """True if helpers send the variance of their gradients."""
        return self.weights_ == "inverse-variance"

    @property
    def measures(self) -> bool:
        """True if the peers estimate sigma^2 and zeta^2."""
        return self.by_variance or (self.measuring and self.alpha == "auto")

    def best_alpha(self, s: S, t: int, helpers_p: Ints) -> Floats:
        """Return the value (P,) of alpha = "auto" for the number of helpers (P,) that answered."""
        raise NotImplementedError

    def correction(self, s: S, share_pn: Floats, inbox: Inbox) -> Tensor:
        """Return the correction (P, d) to subtract from the helpers' average."""
        raise NotImplementedError

    def init(self) -> S:
        return self.first(self.start())

    def first(self, start: State, **more: Any) -> S:
        """Return the state before round 1 with these models, and with `more` fields."""
        training = self.engine.training
        variance = np.zeros(len(self.engine.peers))
        if self.engine.noise is not None:
            steps = training.local_epochs or training.local_steps
            variance = self.engine.noise[self.engine.peers] ** 2 * self.engine.d / steps
        none = start.x.new_zeros(start.x.shape)
        last = {"g": none, "b": none} if self.measures else {}
        zeta2 = np.zeros_like(variance)
        return self.begin(start, variance=variance, zeta2=zeta2, last=last, **more)

    def wants(self, s: S, t: int) -> Bools:
        asks_p = np.isin(self.engine.peers, self.asking(self.engine.n))
        return np.asarray(asks_p[:, None] & (self.eye() == 0))

    def answer_shapes(self, t: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"g": (self.engine.d,)}
        return shapes | ({"variance": (1,)} if self.by_variance else {})

    def answer(self, s: S, asked: Inbox) -> Mapping[str, Tensor]:
        answer = {"g": gradients_at(self.engine, s, asked)}
        if self.by_variance:
            answer["variance"] = self.engine.tensor(s.variance[asked.peer][:, None])
        return answer

    def update(self, s: S, inbox: Inbox) -> S:
        engine, t, share_pn = self.engine, inbox.round, self._shares(inbox)
        helped_p = share_pn.sum(axis=1) > 0
        alpha_p = self._alpha(s, t, share_pn) * helped_p
        average_pd = inbox.answered("g", share_pn)
        aim_pd = average_pd - self.correction(s, share_pn, inbox)
        alpha_p1 = engine.tensor(alpha_p)[:, None]
        batches = engine.batches(t)
        at_start = [engine.gradients(s.x, s.buffers, batch) for batch in batches]
        gradient = corrected(engine, s, at_start, alpha_p1 * aim_pd, alpha_p1)
        fit = engine.fit(s.x, s.buffers, s.opt_state, batches, gradient=gradient)
        g_pd = mean_over_steps([gradients.values for gradients in at_start], batches)
        s = self.learn(s, t, g_pd, average_pd - g_pd, helped_p)
        w_pn = (1 - alpha_p[:, None]) * self.eye() + alpha_p[:, None] * share_pn
        return replace(s.trained(fit), w=w_pn)

    def learn(self, s: S, t: int, g_pd: Tensor, b_pd: Tensor, helped_p: Bools) -> S:
        """Update the estimates of variance and bias."""
        # `g_pd` are the gradients g_i, `b_pd` the bias g_avg - g_i of the helpers, which is ignored
        # for peers that received no answer (`helped_p`).
        if not self.measures:
            return s
        change_pd, variance, zeta2 = g_pd - s.last["g"], s.variance, s.zeta2
        noise_p = self.engine.inner(change_pd, change_pd).cpu().numpy() / 2
        bias_p = self.squared_bias(g_pd, b_pd, s.last).cpu().numpy()
        if t > 1:  # running means over the rounds
            if self.engine.noise is None:
                variance = variance + (noise_p - variance) / (t - 1)
            zeta2 = zeta2 + helped_p * (bias_p - zeta2) / (t - 1)
        b_pd = b_pd.where(self.engine.tensor(helped_p[:, None]) > 0, s.last["b"])
        return replace(s, variance=variance, zeta2=zeta2, last={"g": g_pd, "b": b_pd})

    def squared_bias(self, g_pd: Tensor, b_pd: Tensor, last: Mapping[str, Tensor]) -> Tensor:
        """Return an estimate (P,) of zeta^2 from the biases of two consecutive rounds."""
        return self.engine.inner(b_pd, last["b"])

    def _shares(self, inbox: Inbox) -> Floats:
        """Return the weights (P, n) of the helpers' average; a row is 0 without answers."""
        share_pn, answers = 1.0 * inbox.replied, inbox.answers
        if self.by_variance and len(answers):
            variance_e = answers.each("variance")[:, 0].double().cpu().numpy()
            share_pn = inbox.table(1 / np.maximum(variance_e, 1e-300), answers)  # no division by 0
        total_p1 = share_pn.sum(axis=1, keepdims=True)
        return np.asarray(share_pn / np.where(total_p1 > 0, total_p1, 1.0))

    def _alpha(self, s: S, t: int, share_pn: Floats) -> Floats:
        if self.alpha == "auto":
            return self.best_alpha(s, t, (share_pn > 0).sum(axis=1))
        return np.full(len(share_pn), self.alpha)


class Wga(AskingRule[AskingState], group="helpers"):
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


def best_alpha(helpers: Floats | Ints, bias: Floats, growth: float) -> Floats:
    """Return the alpha that minimises the bound of theorem 1 relative to training alone.

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


class BiasCorrection(AskingRule[BiasState], group="helpers", true_clusters={"bias": "oracle"}):
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
