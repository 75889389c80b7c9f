"""Asking helpers for gradients: what WGA and bias correction share.

Every peer that asks, user 0 of the paper (wga-bias-correction), has neighbours as helpers. They
answer with a gradient at its model, and it descends a mixture of its own and theirs,

    (1 - alpha) g_i(x_i) + alpha (g_avg(x_i) - c_i),   g_avg = sum_k s_ik g_k(x_i).

Symbols: c_i `AskingRule.correction`, s_ik `share_pn` (1/N, or proportional to 1/sigma_k^2: footnote
1), alpha `options.alpha`. Where something reads them, a peer measures sigma^2 and its helpers' bias
from round to round: |g_t - g_t-1|^2 / 2 averages to sigma^2 and <b_t, b_t-1> of b = g_avg - g_i to
|bias|^2, the noises of two rounds being independent, both up to what the model moved in between. A
problem that states its noise (quadratic ones do) spares the measurement of sigma.

Readings and deviations: peers that are no targets train alone, and so does a target in a round in
which no answer comes; shares are those of the helpers that did. The paper asks after each step;
with more `local-steps` the helpers' average moves along as the own gradient does
(`coterie.clients.parts.helper_gradients`): a step descends (1 - alpha) g_i(x) + alpha (g_avg(x0) + g_i(x) -
g_i(x0)), and a round has the noise of as many of the paper's steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.helper_gradients import gradients_at, mean_over_steps, moving_along
from coterie.clients.rule import Clustered, Floats, Rule, State, true_clusters

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


class _Config(Protocol):
    @property
    def peers(self) -> int: ...


@dataclass(frozen=True)
class Asking:
    """Options that WGA and bias correction share: who asks whom, and what the answers weigh.

    Attributes
    ----------
    targets : the peers that ask, "all" or ids like "0,3"; the others train alone.
    helpers : whom they ask: every neighbour, or neighbours in the true cluster only.
    weights : of the helpers among each other, equal or by the variance of their gradients.
    alpha : weight of the helpers' average in [0, 1]; "auto" is the paper's best.
    """

    targets: str = "all"
    helpers: Literal["all", "cluster"] = "all"
    weights: Literal["uniform", "inverse-variance"] = "uniform"
    alpha: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.targets != "all" and not all(i.isdecimal() for i in self.targets.split(",")):
            raise ValueError(f'targets wants "all" or peers like "0,3", not "{self.targets}"')
        if not isinstance(self.alpha, str) and not 0 <= self.alpha <= 1:
            raise ValueError('alpha must lie in [0, 1], or be "auto"')

    def asking(self, peers: int) -> list[int]:
        """The targets among so many peers."""
        return [*range(peers)] if self.targets == "all" else [*map(int, self.targets.split(","))]

    def check(self, config: _Config) -> None:
        """Refuse a target that is no peer."""
        if max(self.asking(config.peers)) >= config.peers:
            raise ValueError(f'targets = "{self.targets}", but peers are 0 to {config.peers - 1}')

    def fits(self, problem: Clustered) -> None:
        """Refuse helpers in clusters that nobody knows."""
        if self.helpers == "cluster":
            true_clusters(problem, 'set helpers = "all"')


@dataclass(frozen=True)
class AskingState(State):
    """What a peer keeps that asks.

    Attributes
    ----------
    w : (P, n) weight of every peer's gradient in the last step.
    variance, zeta2 : (P,) measured sigma_i^2 and squared bias; 0 where nothing needs them.
    last : own gradient `g` and bias `b` of the last round (P, d); empty where nothing needs them.
    """

    w: Floats
    variance: Floats
    zeta2: Floats
    last: dict[str, Tensor]


S = TypeVar("S", bound=AskingState)


class AskingRule(Rule[S], Generic[S]):
    """A step down a mixture of the own gradient and of what the helpers answered."""

    measuring: ClassVar[bool] = False
    """Whether alpha = "auto" reads the measured sigma^2 and zeta^2."""

    def __init__(self, engine: Engine, options: Any, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        asks_p = np.isin(engine.peers, options.asking(engine.n))
        self._helpers_pn: Bools = asks_p[:, None] & (self.eye() == 0)
        if options.helpers == "cluster":
            self._helpers_pn &= self.same_cluster()
        self._by_variance = options.weights == "inverse-variance"
        self._measures = self._by_variance or (self.measuring and options.alpha == "auto")

    def best_alpha(self, state: S, round_: int, helpers_p: Ints) -> Floats:
        """(P,) alpha = "auto" with the answers of so many helpers."""
        raise NotImplementedError

    def correction(self, state: S, round_: int, share_pn: Floats, answers: Letters) -> Tensor:
        """(P, d) what is taken off the helpers' average."""
        raise NotImplementedError

    def first(self) -> dict[str, Any]:
        """The fields of a fresh state."""
        start, training = self.start(), self.engine.training
        variance = np.zeros(len(self.engine.peers))
        if self.engine.noise is not None:
            steps = training.local_epochs or training.local_steps
            variance = self.engine.noise[self.engine.peers] ** 2 * self.engine.d / steps
        none = start.x.new_zeros(start.x.shape)
        last = {"g": none, "b": none} if self._measures else {}
        zeta2 = np.zeros_like(variance)
        return {**vars(start), "w": self.eye(), "variance": variance, "zeta2": zeta2, "last": last}

    def wants(self, state: S, round_: int) -> Ints:
        return self.pairs(self._helpers_pn, hearing=False)

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"g": (self.engine.d,)}
        return shapes | ({"variance": (1,)} if self._by_variance else {})

    def answer(self, state: S, round_: int, asked: Letters) -> tuple[S, Mapping[str, Tensor]]:
        answer = {"g": gradients_at(self.engine, state, round_, asked)}
        if self._by_variance:
            own_e1 = self.local(asked.recipients)[:, None]
            answer["variance"] = self.engine.tensor(state.variance[own_e1])
        return state, answer

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        share_pn = self._shares(answers)
        met_p = share_pn.sum(axis=1) > 0
        alpha_p = self._alpha(state, round_, share_pn) * met_p
        average_pd = self.answered(answers, "g", share_pn)
        aim_pd = average_pd - self.correction(state, round_, share_pn, answers)
        alpha_p1 = self.engine.tensor(alpha_p)[:, None]
        batches = self.engine.batches(round_)
        own = [self.engine.gradients(state.x, state.buffers, batch) for batch in batches]
        gradient = moving_along(self.engine, state, own, alpha_p1 * aim_pd, alpha_p1)
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, batches, gradient=gradient)
        g_pd = mean_over_steps([found.values for found in own], batches)
        state = self.learn(state, round_, g_pd, average_pd - g_pd, met_p)
        w_pn = (1 - alpha_p[:, None]) * self.eye() + alpha_p[:, None] * share_pn
        return replace(state.trained(fit), w=w_pn)

    def learn(self, state: S, round_: int, g_pd: Tensor, b_pd: Tensor, met_p: Bools) -> S:
        """The state after g_i and, by the peers who met a helper, b = g_avg - g_i were seen."""
        if not self._measures:
            return state
        moved_pd, variance, zeta2 = g_pd - state.last["g"], state.variance, state.zeta2
        noise_p = self.engine.inner(moved_pd, moved_pd).cpu().numpy() / 2
        bias_p = self.engine.inner(b_pd, state.last["b"]).cpu().numpy()
        if round_ > 1:  # running means over the rounds
            if self.engine.noise is None:
                variance = variance + (noise_p - variance) / (round_ - 1)
            zeta2 = zeta2 + met_p * (bias_p - zeta2) / (round_ - 1)
        b_pd = b_pd.where(self.engine.tensor(met_p[:, None]) > 0, state.last["b"])
        return replace(state, variance=variance, zeta2=zeta2, last={"g": g_pd, "b": b_pd})

    def weights(self, state: S) -> Floats:
        return state.w

    def _shares(self, answers: Letters) -> Floats:
        """(P, n) share of each helper in the average; a row is 0 where nobody answered."""
        rows, senders = self.local(answers.recipients), answers.senders
        share_pn = np.zeros((len(self.engine.peers), self.engine.n))
        share_pn[rows, senders] = 1.0
        if self._by_variance and len(answers):
            variance_e = answers.each("variance")[:, 0].double().cpu().numpy()
            share_pn[rows, senders] = 1 / np.maximum(variance_e, 1e-300)  # noise-free ones share
        total_p1 = share_pn.sum(axis=1, keepdims=True)
        return share_pn / np.where(total_p1 > 0, total_p1, 1.0)

    def _alpha(self, state: S, round_: int, share_pn: Floats) -> Floats:
        if self.options.alpha == "auto":
            return self.best_alpha(state, round_, (share_pn > 0).sum(axis=1))
        return np.full(len(share_pn), self.options.alpha)
