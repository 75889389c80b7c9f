"""CoBo: collaborative learning via bilevel optimisation (papers: CoBo, NeurIPS 2024, algorithm 1).

Symbols: x_i `state.x`, W row i `state.w`, z_ij the midpoint, gamma `gamma`, rho
`rho`, eta the learning rate. A round t with local steps frozen at the neighbours' models:

1. pairs {i, j} are sampled with probability p_t (`coterie.strategies.pairs`), by relay and peers
alike;
2. both ends of a sampled pair take a fresh minibatch gradient at z_ij = (x_i + x_j) / 2, send it
   to each other, and set w_ij = clip(w_ij + gamma <g_i(z), g_j(z)>, 0, 1)  (equation 3);
3. x_i <- x_i - eta (g_i(x_i) + rho sum_k w_ik (x_i - x_k))  (equation 4), `local-steps` times.

Variant `simplex` (the paper's language models): W^0 = (1 - I) / (n - 1), every pair every round,
and row i is projected onto the probability simplex instead.

Readings: an ordered pair of the paper and its reverse are one pair here, sampled once, so W stays
symmetric; the models of the last round count, not those of a uniformly random one; of the paper's
two theories the stochastic one, with rho >= sqrt(3) L / c; the penalty stays outside momentum and
weight decay applies to x_i alone ("gradient-only momentum"); the midpoint gradient uses the
computing peer's batch-norm buffers without updating them; a simplex row is projected over all other
peers at once, after an update of the pairs that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Lazy, Rows
from coterie.clients.parts.helper_gradients import gradients_at
from coterie.clients.parts.simplex import project_onto_simplex
from coterie.clients.rule import Rule, State
from coterie.ranges import option
from coterie.strategies.pairs import Pairs


@dataclass(frozen=True)
class CoBoState(State):
    """State of CoBo."""

    w: Floats  # W, (P, n), in the engine's precision; 0 on the diagonal


class CoBo(Rule[CoBoState], strategy=Pairs, group="unknown", learns_graph=True):
    """Pairs whose gradients align at their midpoint attract."""

    compares_pairs = True

    gamma: float = option(0.01, "Step size of the weights.", low=0, grid=(0.01, 0.03, 0.1))
    rho: float = option(0.05, "Strength of the pull towards collaborators.", low=0)
    sampling: Literal["constant", "inverse-time", "mixed", "full", "official"] = option(
        "full",
        'Schedule p_t of the sampled pairs: "inverse-time" is 1/t, "mixed" constant, then 1/t, '
        '"full" every pair every round, "official" the authors\' code.',
    )
    probability: float = option(0.0, "p of the constant schedule; 0 for 1/n.", low=0, high=1)
    simplex: bool = option(
        False, "Keep each peer's weights on the probability simplex instead of in [0, 1]."
    )

    def __post_init__(self) -> None:
        if self.probability and self.sampling != "constant":
            raise ValueError('probability needs sampling = "constant"')
        if self.simplex and self.sampling != "full":
            raise ValueError('simplex updates every pair every round: set sampling = "full"')

    def init(self) -> CoBoState:
        others = (1 - self.eye()) / (max(self.engine.n - 1, 1) if self.simplex else 1)
        return self.begin(w=self.engine.tensor(others).cpu().numpy())

    def wants(self, s: CoBoState, t: int) -> Bools:
        return s.w > 0

    def answer(self, s: CoBoState, asked: Inbox) -> Mapping[str, Tensor]:
        ends = Rows(s.x, asked.peer), asked.offers.rows_of("x")
        midpoints = Lazy(lambda a, b: a.add_(b).div_(2), ends)
        return {"g": gradients_at(self.engine, s, asked, midpoints, steps=1)}

    def update(self, s: CoBoState, inbox: Inbox) -> CoBoState:
        w = self.learnt(s.w, inbox) if inbox.products or len(inbox.answers) else s.w
        counts = self.engine.tensor(inbox.freshness)  # pulls need not sum to 1
        pull = self.engine.tensor(self.rho * w) * counts
        largest = self.engine.training.learning_rate * float(pull.sum(dim=1).max())
        if largest > 1:
            self.warn_once(
                f"learning-rate x cobo.rho x the largest weight sum is {largest:.2f} > 1: the pull "
                "overshoots and may diverge; lower cobo.rho or learning-rate"
            )
        towards, strength = inbox.mix("x", pull, s.x), pull.sum(dim=1, keepdim=True)
        return self.fit(s, inbox.round, pull=lambda x, at: strength[at] * x - towards[at], w=w)

    def learnt(self, w: Floats, inbox: Inbox) -> Floats:
        """Return W after a step for the pairs that exchanged gradients."""
        w = w + (self.gamma * inbox.exchanged("g")).astype(w.dtype)
        if not self.simplex:
            return w.clip(0, 1)
        others = self.eye() == 0
        rows = w[others].reshape(len(w), -1).astype(float)
        w[others] = project_onto_simplex(rows).ravel()
        return w

    def weights(self, s: CoBoState) -> Floats:
        return s.w + self.eye()
