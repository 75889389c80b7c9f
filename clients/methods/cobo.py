"""CoBo: collaborative learning via bilevel optimisation (papers: CoBo, NeurIPS 2024, algorithm 1).

Symbols: x_i `state.x`, W row i `state.w`, z_ij the midpoint, gamma `options.gamma`, rho
`options.rho`, eta the learning rate. A round t with local steps frozen at the neighbours' models:

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

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Ints, Letters, Part, Rows
from coterie.clients.parts.simplex import project_onto_simplex
from coterie.clients.rule import Floats, Grid, Rule, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine


@dataclass(frozen=True)
class Options:
    """Options of CoBo.

    Attributes
    ----------
    gamma : float
        Step size of the weights.
    rho : float
        Strength of the pull towards collaborators.
    sampling : {"constant", "inverse-time", "mixed", "full", "official"}
        Schedule p_t of the sampled pairs: "inverse-time" is 1/t, "mixed" constant, then 1/t,
        "full" every pair every round, "official" the authors' code.
    probability : float
        p of the constant schedule; 0 for 1/n.
    simplex : bool
        Keep each peer's weights on the probability simplex instead of in [0, 1].
    """

    gamma: Annotated[float, Range(0)] = 0.01
    rho: Annotated[float, Range(0)] = 0.05
    sampling: Literal["constant", "inverse-time", "mixed", "full", "official"] = "full"
    probability: Annotated[float, Range(0, 1)] = 0.0
    simplex: bool = False
    grid: ClassVar[Grid] = {"gamma": (0.01, 0.03, 0.1)}

    def __post_init__(self) -> None:
        if self.probability and self.sampling != "constant":
            raise ValueError('probability needs sampling = "constant"')
        if self.simplex and self.sampling != "full":
            raise ValueError('simplex updates every pair every round: set sampling = "full"')


@dataclass(frozen=True)
class CoBoState(State):
    """State of CoBo.

    Attributes
    ----------
    w : Tensor, (P, n)
        Each peer's row of W; the diagonal is 0.
    """

    w: Tensor


@dataclass(frozen=True)
class _Midpoints:
    """Midpoints between the rows of two stacks, (E, d)."""

    a: Rows
    b: Rows

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, at: Part) -> Tensor:
        return self.a[at].add_(self.b[at]).div_(2)


class CoBo(Rule[CoBoState]):
    """CoBo: pull each model towards peers whose gradients align with its own at the midpoint."""

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._warned = False

    def init(self) -> CoBoState:
        others = 1.0 - self.eye()
        if self.options.simplex:
            others /= max(self.engine.n - 1, 1)
        return CoBoState(**vars(self.start()), w=self.engine.tensor(others))

    def wants(self, state: CoBoState, round_: int) -> Ints:
        return self.pairs(state.w.cpu().numpy() > 0)

    def answer(
        self, state: CoBoState, round_: int, asked: Letters
    ) -> tuple[CoBoState, Mapping[str, Tensor]]:
        local_e = self.local(asked.recipients)
        z_ed = _Midpoints(Rows(state.x, local_e), asked.rows_of("x"))
        batch = self.engine.batches(
            round_, Purpose.ANSWER, peers=local_e, partners=asked.senders, steps=1
        )[0]
        return state, {"g": self.engine.gradients(z_ed, state.buffers_at(local_e), batch).values}

    def update(
        self, state: CoBoState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> CoBoState:
        w_pn = self._weights_after(state.w, sent, answers)
        received_pn = offers.senders_to(self.engine.peers, self.engine.n)
        counts_pn = received_pn * self.freshness(offers)  # pulls need not sum to 1
        pull_pn = self.options.rho * w_pn * self.engine.tensor(counts_pn)
        self._warn_if_unstable(pull_pn)
        towards_pd = self.engine.mix(pull_pn[:, offers.authors], offers["x"], state.x)
        strength_p1 = pull_pn.sum(dim=1, keepdim=True)
        fit = self.engine.fit(
            state.x,
            state.buffers,
            state.opt_state,
            self.engine.batches(round_),
            drift=lambda x_ed, at: strength_p1[at] * x_ed - towards_pd[at],
        )
        return replace(state.trained(fit), w=w_pn)

    def _weights_after(self, w_pn: Tensor, sent: Letters, answers: Letters) -> Tensor:
        """Return W updated for the pairs that exchanged gradients.

        Both ends compute the same product of the two gradients.
        """
        n = self.engine.n
        sent_at = {
            (p, k): e for e, (p, k) in enumerate(zip(sent.senders, sent.recipients, strict=True))
        }
        exchanged = [
            (e, sent_at[i, k])
            for e, (k, i) in enumerate(zip(answers.senders, answers.recipients, strict=True))
            if (i, k) in sent_at
        ]
        if not exchanged:
            return w_pn
        e_in, e_out = np.array(exchanged).T
        products_e = self.engine.inner(
            Rows(answers["g"], answers.rows[e_in]), Rows(sent["g"], sent.rows[e_out])
        )
        p, k = self.local(answers.recipients[e_in]), answers.senders[e_in]
        w_pn = w_pn.clone()
        w_pn[p, k] += (self.options.gamma * products_e).to(w_pn.dtype)
        if not self.options.simplex:
            return w_pn.clamp(0.0, 1.0)
        rows = w_pn.cpu().numpy().astype(np.float64)
        others = np.arange(n) != self.engine.peers[:, None]
        rows[others] = project_onto_simplex(rows[others].reshape(-1, n - 1)).ravel()
        return self.engine.tensor(rows)

    def _warn_if_unstable(self, pull_pn: Tensor) -> None:
        largest = self.engine.training.learning_rate * float(pull_pn.sum(dim=1).max())
        if largest > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"learning-rate x cobo.rho x the largest weight sum is {largest:.2f} > 1: the pull "
                "overshoots and may diverge; lower cobo.rho or learning-rate",
                stacklevel=2,
            )

    def weights(self, state: CoBoState) -> Floats:
        return state.w.cpu().numpy().astype(np.float64) + self.eye()
