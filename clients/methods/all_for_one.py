"""All-for-one (papers: all-for-one, equation "All-for-one", definitions 1 and 3, equation 1).

Every peer k computes stochastic gradients at the model of any peer i that asks:

    x_i <- x_i - eta sum_k alpha_ik g_k(x_i),   k = i included.

The weights depend on the similarity ratio at x_i,

    r_ik = max(0, 1 - |grad R_k - grad R_i|^2 / |grad R_i|^2),   r_ii = 1.

Symbols: x_i `state.x`, r_ik `state.r`, alpha_ik `weights`, lambda `options.lambda_`, b_alpha
`options.similarity_batch_size`, n_k `engine.samples` (sigma_k^2 = sigma^2 / n_k, remark 1), beta
`options.smoothness`. In refresh rounds every neighbour also answers with gradients G_k on an
estimation batch of b_alpha examples, independent of its training minibatch:

    plain     r^_ik = max(0, 1 - |G_i - G_k|^2 / |G_i|^2)                        (equation 1)
    debiased  r^_ik = max(0, 1 - <G'_k - G'_i, G''_k - G''_i> / <G'_i, G''_i>),

G', G'' on two disjoint halves of the batch (`coterie.clients.parts.similarity`). Noise inflates
both norms of equation 1: identical peers collaborate only while |grad R_i|^2 >= (1 + lambda) / (1 -
lambda) times the noise of G_i, so in the end every peer trains alone. Products across halves are
unbiased.

Weights over the peers that answered, with r_ik = 0 where it was never estimated:

    normalised  binary n_k 1{r > lambda}, continuous r_ik, divided by their sum (the authors' code)
    paper       phi(r_ik) n_k / sum_j n_j psi(r_ij), phi = lambda 1{r >= lambda} or r, psi = r phi
    oracle      uniform in the true cluster, without estimates.

The paper's weights sum to (sigma_psi / sigma_phi)^2 >= 1, and its theorem 1 requires eta times
that to be below 1 / beta; nothing is capped, but steps that are too long cause a warning.

Readings and deviations: a batch larger than n_i is all data; a peer with a single example has it
in both halves. The paper asks before each step; with several `local-steps` the helpers' gradients
are corrected by the change of the peer's own gradient (`coterie.clients.parts.helper_gradients`): a
step descends sum_k alpha_ik (g_k(x0) + g_i(x) - g_i(x0)), the term k = i being g_i(x). With all
weight on itself a peer trains locally, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.helper_gradients import corrected, gradients_at
from coterie.clients.parts.similarity import Estimator, by_definition, normalised
from coterie.clients.rule import Clustered, Floats, Grid, Rule, State, true_clusters
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


@dataclass(frozen=True)
class Options:
    """Options of All-for-one.

    Attributes
    ----------
    criterion : {"binary", "continuous", "oracle"}
        Function from similarity to weights; "oracle" uses the true clusters instead.
    weights : {"normalised", "paper"}
        Weights that sum to 1, or those of the paper's definition 1.
    lambda_ : float
        Minimum similarity ratio of a collaborator, for the binary criterion.
    estimator : {"plain", "debiased"}
        Estimator of the similarity ratio; "plain" is the paper's, which loses all collaborators
        as gradients shrink.
    estimator_ema : float
        Weight of the previous estimates in a moving average (debiased estimator); 0 for none.
    similarity_batch_size : int
        Examples per estimate.
    refresh_every : int
        Rounds between two estimates; in between only collaborators are asked.
    smoothness : float
        Smoothness constant beta of the losses, to check the step size under the paper's weights;
        0 if unknown.
    """

    criterion: Literal["binary", "continuous", "oracle"] = "binary"
    weights: Literal["normalised", "paper"] = "normalised"
    lambda_: Annotated[float, Range(above=0, below=1)] = 0.1
    estimator: Literal["plain", "debiased"] = "debiased"
    estimator_ema: Annotated[float, Range(0, below=1)] = 0.8
    similarity_batch_size: Annotated[int, Range(1)] = 512
    refresh_every: Annotated[int, Range(1)] = 10
    smoothness: Annotated[float, Range(0)] = 0.0
    grid: ClassVar[Grid] = {"lambda": (0.05, 0.1, 0.3)}

    def __post_init__(self) -> None:
        minimum = 2 if self.estimator == "debiased" else 1
        if self.similarity_batch_size < minimum:
            raise ValueError(
                f"similarity-batch-size must be at least {minimum} with estimator = "
                f'"{self.estimator}"'
            )

    def fits(self, problem: Clustered) -> None:
        """Reject the oracle on a problem without known clusters."""
        if self.criterion == "oracle":
            true_clusters(problem, 'set criterion = "binary" or "continuous"')


@dataclass(frozen=True)
class AllForOneState(State):
    """State of All-for-one.

    Attributes
    ----------
    r : ndarray, (P, n)
        Similarity ratios at each peer's model; 1 on the diagonal, nan where never estimated.
    """

    r: Floats


class AllForOne(Rule[AllForOneState]):
    """All-for-one: descend a weighted sum of the gradients of similar peers."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        debiased = options.estimator == "debiased"
        self._estimator = Estimator(
            engine,
            options.similarity_batch_size,
            options.estimator_ema if debiased else 0.0,
            debiased,
        )
        self._near_pn: Bools = engine.topology[engine.peers] | (self.eye() > 0)
        self._warned = False

    def init(self) -> AllForOneState:
        return AllForOneState(**vars(self.start()), r=np.where(self.eye() > 0, 1.0, np.nan))

    def wants(self, state: AllForOneState, round_: int) -> Ints:
        asked_pn = self._near_pn if self.is_refreshed(round_) else self.weights(state) > 0
        return self.pairs(asked_pn, receiving=False)

    def is_refreshed(self, round_: int) -> bool:
        """Return True if similarity is estimated in `round_`."""
        options: Options = self.options
        return options.criterion != "oracle" and (round_ - 1) % options.refresh_every == 0

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        parts = self._estimator.parts if self.is_refreshed(round_) else ()
        return dict.fromkeys(("g", *parts), (self.engine.d,))

    def answer(
        self, state: AllForOneState, round_: int, asked: Letters
    ) -> tuple[AllForOneState, Mapping[str, Tensor]]:
        answer = {"g": gradients_at(self.engine, state, round_, asked)}
        if self.is_refreshed(round_):
            local_e = self.local(asked.recipients)
            buffers = state.buffers_at(local_e)
            answer |= self._estimator.gradients(asked.each("x"), buffers, round_, local_e)
        return state, answer

    def update(
        self, state: AllForOneState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> AllForOneState:
        if self.is_refreshed(round_):
            parts = self._estimator.gradients(
                state.x, state.buffers, round_, np.arange(len(state.x))
            )
            state = replace(state, r=self._estimator.ratios(state.r, parts, answers))
        answered_pn = answers.senders_to(self.engine.peers, self.engine.n) | (self.eye() > 0)
        alpha_pn = self._alpha(state, answered_pn)
        self._warn_if_long(alpha_pn)
        helpers_pn = np.where(self.eye() > 0, 0.0, alpha_pn)
        helpers_pd = self.answered(answers, "g", helpers_pn)
        others_p1, all_p1 = (
            self.engine.tensor(w_pn.sum(axis=1, keepdims=True)) for w_pn in (helpers_pn, alpha_pn)
        )
        batches = self.engine.batches(round_)
        at_start = (self.engine.gradients(state.x, state.buffers, batch) for batch in batches)
        gradient = corrected(self.engine, state, at_start, helpers_pd, others_p1, all_p1)
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, batches, gradient=gradient)
        return state.trained(fit)

    def weights(self, state: AllForOneState) -> Floats:
        return self._alpha(state, self._near_pn)

    def _alpha(self, state: AllForOneState, present_pn: Bools) -> Floats:
        """Return the weights (P, n) over the present peers."""
        o = self.options
        if o.criterion == "oracle":
            cluster_pn = 1.0 * (self.same_cluster() & present_pn)
            uniform_pn: Floats = cluster_pn / cluster_pn.sum(axis=1, keepdims=True)
            return uniform_pn
        r_pn = np.where(present_pn, np.nan_to_num(state.r), 0.0)
        weigh = by_definition if o.weights == "paper" else normalised
        return weigh(r_pn, self.engine.samples, o.lambda_ if o.criterion == "binary" else None)

    def _warn_if_long(self, alpha_pn: Floats) -> None:
        if self._warned or self.options.weights != "paper":
            return
        longest, beta = float(alpha_pn.sum(axis=1).max()), self.options.smoothness
        if self.engine.training.learning_rate * longest * beta >= 1 or (not beta and longest >= 2):
            self._warned = True
            warnings.warn(
                f'all-for-one.weights = "paper": the weights of a peer sum to {longest:.2f}, so '
                f"learning-rate must be below {1 / longest:.2f} / beta, with beta = "
                f"all-for-one.smoothness = {beta:g} (0: unknown)",
                stacklevel=2,
            )
