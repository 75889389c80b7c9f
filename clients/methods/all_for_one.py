"""All-for-one (papers: all-for-one, equation "All-for-one", definitions 1 and 3, equation 1).

Every peer k computes stochastic gradients at the model of any peer i that asks:

    x_i <- x_i - eta sum_k alpha_ik g_k(x_i),   k = i included.

The weights depend on the similarity ratio at x_i,

    r_ik = max(0, 1 - |grad R_k - grad R_i|^2 / |grad R_i|^2),   r_ii = 1.

Symbols: x_i `state.x`, r_ik `state.r`, alpha_ik `weights`, lambda `lambda_`, b_alpha
`similarity_batch_size`, n_k `engine.samples` (sigma_k^2 = sigma^2 / n_k, remark 1), beta the
smoothness of the losses. In refresh rounds every neighbour also answers with gradients G_k on an
estimation batch of b_alpha examples, independent of its training minibatch:

    plain     r^_ik = max(0, 1 - |G_i - G_k|^2 / |G_i|^2)                        (equation 1)
    debiased  r^_ik = max(0, 1 - <G'_k - G'_i, G''_k - G''_i> / <G'_i, G''_i>),

G', G'' on two disjoint halves of the batch (`Estimator`). Noise inflates
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

Collaboration weights from the similarity of gradients (All-for-one, section 4).

The similarity ratio r_ik of peer k at peer i's model is estimated from gradients on estimation
batches: G (plain), or G', G'' on the two halves of a batch (debiased). Readings: estimates are
clipped to at most 1; where both gradients are 0 the ratio is 1, where only G_i is 0 it is 0; a
negative denominator gives no estimate, and the previous one is kept.

Legend: p = peers of this node, n = all peers, e = letters, d = parameters; n_k = samples of peer
k, whose gradient variance is taken as proportional to 1 / n_k (remark 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Bools, Buffers, Engine, Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Letters
from coterie.clients.parts.helper_gradients import corrected, gradients_at
from coterie.clients.rule import Clustered, Rule, State, true_clusters
from coterie.ranges import option
from coterie.strategies.plans import WantedHelp


@dataclass(frozen=True)
class AllForOneState(State):
    """State of All-for-one."""

    r: Floats  # similarity ratios at each peer's model, (P, n); 1 for itself, nan if unknown


class AllForOne(
    Rule[AllForOneState], strategy=WantedHelp, group="unknown", learns_graph=True,
    true_clusters={"criterion": "oracle"},
):  # fmt: skip
    """Averages the gradients at its model that resemble its own."""

    criterion: Literal["binary", "continuous", "oracle"] = option(
        "binary", 'Function from similarity to weights; "oracle" uses the true clusters instead.'
    )
    weights_: Literal["normalised", "paper"] = option(
        "normalised", "Weights that sum to 1, or those of the paper's definition 1."
    )
    lambda_: float = option(
        0.1, "Minimum similarity ratio of a collaborator, for the binary criterion.",
        above=0, below=1, grid=(0.05, 0.1, 0.3),
    )  # fmt: skip
    estimator: Literal["plain", "debiased"] = option(
        "debiased",
        'Estimator of the similarity ratio; "plain" is the paper\'s, which loses all collaborators '
        "as gradients shrink.",
    )
    estimator_ema: float = option(
        0.8,
        "Weight of the previous estimates in a moving average (debiased estimator); 0 for none.",
        low=0, below=1,
    )  # fmt: skip
    similarity_batch_size: int = option(512, "Examples per estimate.", low=1)
    refresh_every: int = option(
        10, "Rounds between two estimates; in between only collaborators are asked.", low=1
    )

    def __post_init__(self) -> None:
        minimum = 2 if self.estimator == "debiased" else 1
        if self.similarity_batch_size < minimum:
            raise ValueError(
                f"similarity-batch-size must be at least {minimum} with estimator = "
                f'"{self.estimator}"'
            )

    def check_data(self, problem: Clustered) -> None:
        if self.criterion == "oracle":
            true_clusters(problem, 'set criterion = "binary" or "continuous"')

    @cached_property
    def _estimator(self) -> Estimator:
        debiased = self.estimator == "debiased"
        memory = self.estimator_ema if debiased else 0.0
        return Estimator(self.engine, self.similarity_batch_size, memory, debiased)

    def init(self) -> AllForOneState:
        return self.begin(r=np.where(self.eye() > 0, 1.0, np.nan))

    def wants(self, s: AllForOneState, t: int) -> Bools:
        return self.near if self.is_refreshed(t) else self.weights(s) > 0

    def is_refreshed(self, t: int) -> bool:
        return self.criterion != "oracle" and (t - 1) % self.refresh_every == 0

    def answer_shapes(self, t: int) -> dict[str, tuple[int, ...]]:
        parts = self._estimator.parts if self.is_refreshed(t) else ()
        return dict.fromkeys(("g", *parts), (self.engine.d,))

    def answer(self, s: AllForOneState, asked: Inbox) -> Mapping[str, Tensor]:
        answer = {"g": gradients_at(self.engine, s, asked)}
        if self.is_refreshed(asked.round):
            x_ed, buffers = asked.offers.each("x"), s.buffers_at(asked.peer)
            answer |= self._estimator.gradients(x_ed, buffers, asked.round, asked.peer)
        return answer

    def update(self, s: AllForOneState, inbox: Inbox) -> AllForOneState:
        engine, t, eye = self.engine, inbox.round, self.eye()
        if self.is_refreshed(t):
            own = self._estimator.gradients(s.x, s.buffers, t, np.arange(len(s.x)))
            s = replace(s, r=self._estimator.ratios(s.r, own, inbox.answers))
        alpha_pn = self._alpha(s, inbox.replied | (eye > 0))
        longest = float(alpha_pn.sum(axis=1).max())
        if self.weights_ == "paper" and longest >= 2:
            self.warn_once(
                f'all-for-one.weights = "paper": the weights of a peer sum to {longest:.2f}, so '
                f"learning-rate must be below {1 / longest:.2f} / beta, beta the losses' smoothness"
            )
        helpers_pn = np.where(eye > 0, 0.0, alpha_pn)
        helpers_pd = inbox.answered("g", helpers_pn)
        others_p1, all_p1 = (
            engine.tensor(w_pn.sum(axis=1, keepdims=True)) for w_pn in (helpers_pn, alpha_pn)
        )
        batches = engine.batches(t)
        at_start = (engine.gradients(s.x, s.buffers, batch) for batch in batches)
        gradient = corrected(engine, s, at_start, helpers_pd, others_p1, all_p1)
        return self.fit(s, t, batches=batches, gradient=gradient)

    def weights(self, s: AllForOneState) -> Floats:
        return self._alpha(s, self.near | (self.eye() > 0))

    def _alpha(self, s: AllForOneState, present_pn: Bools) -> Floats:
        """Return the weights (P, n) over the present peers."""
        if self.criterion == "oracle":
            cluster_pn = 1.0 * (self.same_cluster() & present_pn)
            return np.asarray(cluster_pn / cluster_pn.sum(axis=1, keepdims=True))
        r_pn = np.where(present_pn, np.nan_to_num(s.r), 0.0)
        weigh = by_definition if self.weights_ == "paper" else normalised
        return weigh(
            r_pn, self.engine.samples, self.lambda_ if self.criterion == "binary" else None
        )


@dataclass(frozen=True)
class Estimator:
    """Estimator of the similarity ratio, with a moving average over refreshes."""

    engine: Engine  # engine of the hosted peers
    batch_size: int  # examples per estimate
    memory: float  # weight of the previous estimates in the average; 0 for none
    debiased: bool  # use products across two halves of the batch instead of norms on all of it

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the gradients that an estimate needs."""
        return ("G'", "G''") if self.debiased else ("G",)

    def gradients(
        self, x_ed: Tensor, buffers: Buffers, round_: int, local_e: Ints
    ) -> dict[str, Tensor]:
        """Return the gradients, (E, d) each, at any models on the data of hosted peers (E,)."""
        batches = self.engine.batches(
            round_, Purpose.ESTIMATE, peers=local_e, steps=1, batch_size=self.batch_size,
            halves=self.debiased,
        )  # fmt: skip
        return {
            part: self.engine.gradients(x_ed, buffers, batch).values
            for part, batch in zip(self.parts, batches, strict=True)
        }

    def ratios(self, r_pn: Floats, local: dict[str, Tensor], answers: Letters) -> Floats:
        """Return the ratios (P, n) after a refresh; nan where never estimated.

        Peers that did not answer keep their previous ratio, `r_pn`. `local` has the gradients
        (P, d) of the hosted peers at their own models, `answers` those of the peers they asked.
        """
        if not len(answers):
            return r_pn
        inner, rows = self.engine.inner, np.searchsorted(self.engine.peers, answers.recipients)
        first, last = self.parts[0], self.parts[-1]
        squared_p = inner(local[first], local[last]).cpu().numpy()
        away_e, away2_e = (answers.each(part) - local[part][rows] for part in (first, last))
        ratio_e = ratio(inner(away_e, away2_e).cpu().numpy(), squared_p[rows])
        at, r_pn = (rows, answers.senders), r_pn.copy()
        mixed_e = self.memory * r_pn[at] + (1 - self.memory) * ratio_e
        mixed_e = np.where(np.isnan(r_pn[at]), ratio_e, mixed_e)
        r_pn[at] = np.where(np.isnan(ratio_e), r_pn[at], mixed_e)
        return r_pn


def ratio(apart: Floats, squared: Floats) -> Floats:
    """Compute the similarity ratio max(0, 1 - |G_k - G_i|^2 / |G_i|^2), at most 1.

    `apart` and `squared` are |G_k - G_i|^2 and |G_i|^2, or unbiased estimates. The ratio is 1 where
    both are 0, 0 where only `squared` is; nan where `squared` is negative, less than its noise.
    """
    at_rest = np.where(apart == 0, 1.0, 0.0)
    r = 1 - apart / np.where(squared == 0, 1.0, squared)
    clipped = np.clip(np.where(squared == 0, at_rest, r), 0.0, 1.0)
    return np.where(squared < 0, np.nan, clipped)


def normalised(r_pn: Floats, n_k: Floats, threshold: float | None) -> Floats:
    """Return weights (P, n) that sum to 1, as in the authors' code, from ratios r_ik and rows n_k.

    `threshold` is lambda of the binary criterion n_k 1{r > lambda}; None for the continuous one, r.
    """
    raw_pn = r_pn if threshold is None else n_k * (r_pn > threshold)
    weights: Floats = raw_pn / raw_pn.sum(axis=1, keepdims=True)
    return weights


def by_definition(r_pn: Floats, n_k: Floats, threshold: float | None) -> Floats:
    """Return the weights (P, n) of definition 1, phi(r_ik) n_k / sum_j n_j r_ij phi(r_ij).

    `threshold` is lambda of phi = lambda 1{r >= lambda} (binary); None for phi = r (continuous).
    """
    phi_pn = r_pn if threshold is None else threshold * (r_pn >= threshold)
    weights: Floats = n_k * phi_pn / (n_k * r_pn * phi_pn).sum(axis=1, keepdims=True)
    return weights
