"""Base rule of WGA and bias correction: peers ask helpers for gradients at their model.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from coterie.clients.hints import Bools, Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.parts.helper_gradients import corrected, gradients_at, mean_over_steps
from coterie.clients.rule import Clustered, Rule, State, Weighted, true_clusters
from coterie.ranges import option
from coterie.strategies.wanted import WantedHelp

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
    helpers: Literal["all", "cluster"] = option(
        "all", 'Peers that they ask: "all" neighbours, or only those in the true "cluster".'
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

    def check_data(self, problem: Clustered) -> None:
        if self.helpers == "cluster":
            true_clusters(problem, 'set helpers = "all"')

    @property
    def by_variance(self) -> bool:
        """True if helpers send the variance of their gradients."""
        return self.weights_ == "inverse-variance"

    @property
    def measures(self) -> bool:
        """True if the peers estimate sigma^2 and zeta^2."""
        return self.by_variance or (self.measuring and self.alpha == "auto")

    @cached_property
    def _helpers(self) -> Bools:
        asks_p = np.isin(self.engine.peers, self.asking(self.engine.n))
        helpers_pn: Bools = asks_p[:, None] & (self.eye() == 0)
        return helpers_pn & self.same_cluster() if self.helpers == "cluster" else helpers_pn

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
        return self._helpers

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
