"""Base rule of WGA and bias correction: peers ask helpers for gradients at their model.

Every target, user 0 of the paper (wga-bias-correction), has its neighbours as helpers. They answer
with a gradient at its model, and it descends a mixture of its gradient and theirs,

    (1 - alpha) g_i(x_i) + alpha (g_avg(x_i) - c_i),   g_avg = sum_k s_ik g_k(x_i).

Symbols: c_i `AskingRule.correction`, s_ik `share_pn` (1/N, or proportional to 1/sigma_k^2: footnote
1), alpha `options.alpha`. Where an option needs them, a peer estimates sigma^2 and its helpers'
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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.helper_gradients import corrected, gradients_at, mean_over_steps
from coterie.clients.rule import Clustered, Floats, Rule, State, true_clusters
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


class _Config(Protocol):
    @property
    def peers(self) -> int: ...


@dataclass(frozen=True)
class Asking:
    """Options shared by WGA and bias correction.

    Attributes
    ----------
    targets : str
        Peers that ask for gradients, "all" or ids like "0,3"; the others train alone.
    helpers : {"all", "cluster"}
        Peers that they ask: "all" neighbours, or only those in the true "cluster".
    weights : {"uniform", "inverse-variance"}
        Weights of the helpers in their average: equal, or by the variance of their gradients.
    alpha : float or "auto"
        Weight of the helpers' average in [0, 1]; "auto" is the paper's optimum.
    """

    targets: str = "all"
    helpers: Literal["all", "cluster"] = "all"
    weights: Literal["uniform", "inverse-variance"] = "uniform"
    alpha: Annotated[float, Range(0, 1)] | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.targets != "all" and not all(i.isdecimal() for i in self.targets.split(",")):
            raise ValueError(f'targets must be "all" or ids like "0,3", not "{self.targets}"')

    def asking(self, peers: int) -> list[int]:
        """Return the targets among `peers` peers."""
        return [*range(peers)] if self.targets == "all" else [*map(int, self.targets.split(","))]

    def check(self, config: _Config) -> None:
        """Reject targets that do not exist."""
        if max(self.asking(config.peers)) >= config.peers:
            raise ValueError(f'targets = "{self.targets}", but peers are 0 to {config.peers - 1}')

    def fits(self, problem: Clustered) -> None:
        """Reject helpers by cluster on a problem without known clusters."""
        if self.helpers == "cluster":
            true_clusters(problem, 'set helpers = "all"')


@dataclass(frozen=True)
class AskingState(State):
    """State of a rule that asks for gradients.

    Attributes
    ----------
    w : ndarray, (P, n)
        Weight of every peer's gradient in the last step.
    variance, zeta2 : ndarray, (P,)
        Estimates of sigma_i^2 and of the squared bias; 0 if not needed.
    last : dict of str to Tensor, (P, d)
        The peer's gradient "g" and its helpers' bias "b" in the last round; empty if not needed.
    """

    w: Floats
    variance: Floats
    zeta2: Floats
    last: dict[str, Tensor]


S = TypeVar("S", bound=AskingState)


class AskingRule(Rule[S], Generic[S]):
    """Rule that descends a mixture of the peer's gradient and its helpers' answers."""

    measuring: ClassVar[bool] = False
    """With alpha = "auto" the rule needs estimates of sigma^2 and zeta^2."""

    def __init__(self, engine: Engine, options: Any, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        asks_p = np.isin(engine.peers, options.asking(engine.n))
        self._helpers_pn: Bools = asks_p[:, None] & (self.eye() == 0)
        if options.helpers == "cluster":
            self._helpers_pn &= self.same_cluster()
        self._by_variance = options.weights == "inverse-variance"
        self._measures = self._by_variance or (self.measuring and options.alpha == "auto")

    def best_alpha(self, state: S, round_: int, helpers_p: Ints) -> Floats:
        """Return the value (P,) of alpha = "auto" for the number of helpers (P,) that answered."""
        raise NotImplementedError

    def correction(self, state: S, round_: int, share_pn: Floats, answers: Letters) -> Tensor:
        """Return the correction (P, d) to subtract from the helpers' average."""
        raise NotImplementedError

    def first(self) -> dict[str, Any]:
        """Return the fields of the initial state."""
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
        return self.pairs(self._helpers_pn, receiving=False)

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"g": (self.engine.d,)}
        return shapes | ({"variance": (1,)} if self._by_variance else {})

    def answer(self, state: S, round_: int, asked: Letters) -> tuple[S, Mapping[str, Tensor]]:
        answer = {"g": gradients_at(self.engine, state, round_, asked)}
        if self._by_variance:
            local_e1 = self.local(asked.recipients)[:, None]
            answer["variance"] = self.engine.tensor(state.variance[local_e1])
        return state, answer

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        share_pn = self._shares(answers)
        helped_p = share_pn.sum(axis=1) > 0
        alpha_p = self._alpha(state, round_, share_pn) * helped_p
        average_pd = self.answered(answers, "g", share_pn)
        aim_pd = average_pd - self.correction(state, round_, share_pn, answers)
        alpha_p1 = self.engine.tensor(alpha_p)[:, None]
        batches = self.engine.batches(round_)
        at_start = [self.engine.gradients(state.x, state.buffers, batch) for batch in batches]
        gradient = corrected(self.engine, state, at_start, alpha_p1 * aim_pd, alpha_p1)
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, batches, gradient=gradient)
        g_pd = mean_over_steps([gradients.values for gradients in at_start], batches)
        state = self.learn(state, round_, g_pd, average_pd - g_pd, helped_p)
        w_pn = (1 - alpha_p[:, None]) * self.eye() + alpha_p[:, None] * share_pn
        return replace(state.trained(fit), w=w_pn)

    def learn(self, state: S, round_: int, g_pd: Tensor, b_pd: Tensor, helped_p: Bools) -> S:
        """Update the estimates of variance and bias.

        Parameters
        ----------
        state : AskingState
            State with the estimates of the previous rounds.
        round_ : int
            Number of the round, from 1.
        g_pd : Tensor, (P, d)
            Gradients g_i of the hosted peers.
        b_pd : Tensor, (P, d)
            Bias g_avg - g_i of their helpers.
        helped_p : ndarray of bool, (P,)
            Mask of the peers that received an answer; `b_pd` is ignored for the others.
        """
        if not self._measures:
            return state
        change_pd, variance, zeta2 = g_pd - state.last["g"], state.variance, state.zeta2
        noise_p = self.engine.inner(change_pd, change_pd).cpu().numpy() / 2
        bias_p = self.squared_bias(g_pd, b_pd, state.last).cpu().numpy()
        if round_ > 1:  # running means over the rounds
            if self.engine.noise is None:
                variance = variance + (noise_p - variance) / (round_ - 1)
            zeta2 = zeta2 + helped_p * (bias_p - zeta2) / (round_ - 1)
        b_pd = b_pd.where(self.engine.tensor(helped_p[:, None]) > 0, state.last["b"])
        return replace(state, variance=variance, zeta2=zeta2, last={"g": g_pd, "b": b_pd})

    def squared_bias(self, g_pd: Tensor, b_pd: Tensor, last: Mapping[str, Tensor]) -> Tensor:
        """Return an estimate (P,) of zeta^2 from the biases of two consecutive rounds."""
        return self.engine.inner(b_pd, last["b"])

    def weights(self, state: S) -> Floats:
        return state.w

    def _shares(self, answers: Letters) -> Floats:
        """Return the weights (P, n) of the helpers' average; a row is 0 without answers."""
        rows, senders = self.local(answers.recipients), answers.senders
        share_pn = np.zeros((len(self.engine.peers), self.engine.n))
        share_pn[rows, senders] = 1.0
        if self._by_variance and len(answers):
            variance_e = answers.each("variance")[:, 0].double().cpu().numpy()
            share_pn[rows, senders] = 1 / np.maximum(variance_e, 1e-300)  # no division by 0
        total_p1 = share_pn.sum(axis=1, keepdims=True)
        return share_pn / np.where(total_p1 > 0, total_p1, 1.0)

    def _alpha(self, state: S, round_: int, share_pn: Floats) -> Floats:
        if self.options.alpha == "auto":
            return self.best_alpha(state, round_, (share_pn > 0).sum(axis=1))
        return np.full(len(share_pn), self.options.alpha)
