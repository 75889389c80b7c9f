"""FedeRiCo: federating with the right collaborators (papers: federico, sections 3.2 and 3.3).

Expectation maximisation over whose model explains whose data, by gradient steps and sampled
neighbours. Symbols: phi_i `state.x`, each peer its own random start (from a common one all models
stay equal); l_ij `state.last` and L_ij `state.tracked`, loss of phi_j on i's data, last seen and
tracked; w_ij `weights`; M `options.neighbours`. In round t peer i

1. samples B, itself and M others: with probability epsilon uniformly, else those it likes best;
2. receives phi_b and evaluates l_ib on its data; other l_ij keep their last value;
3. E-step: L_ij <- (1 - beta) L_ij + beta l_ij (or L_ij + l_ij), w_i. = softmax(-sharpness L_i.);
4. M-step: answers each owner b with w_ib times the gradient of l_ib at phi_b  (equation 8);
5. applies its optimizer to the sum of the answers that it got, its own included.

It predicts with the mixture sum_j w_ij h_phi_j(x) of the models it received last.

Readings and deviations: L starts at 0, so peers never heard from look best and are sampled first;
they have no weight until a model of theirs comes (so M = 0 is local training), and after n rounds
they are left to chance: they may be gone. Ties are broken at random. "sum" is the likelihood of the
text; "mean" divides losses and gradients by n_i. A full-batch answer knows no minibatches and no
`local-steps`: a round is a step. An "epoch" answer is what one epoch of plain SGD adds up to,
(start - end) / learning-rate, on minibatch means whatever the loss. For prediction a peer keeps its
own model and the `ensemble` heaviest others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.ensemble import NOBODY, kept, known, mixture
from coterie.clients.parts.exploring import epsilon_greedy
from coterie.clients.rule import Floats, Grid, Mixture, Rule, State

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine
    from coterie.clients.engine.network import Buffers

_WORST = 1e30  # loss of a model whose loss is not a number: it gets no weight, and spoils nothing


@dataclass(frozen=True)
class Options:
    """FedeRiCo's knobs.

    Attributes
    ----------
    neighbours : M, how many others a peer samples each round.
    epsilon : chance to sample uniformly.
    coin : one chance for a round's sample, or one for each of its positions.
    beta : share of the newest loss in the tracked one.
    tracking : exponential average of the losses, or their sum over rounds (beta is not used).
    loss : mean over the own examples (soft weights), or sum (one-hot in a few rounds).
    sharpness : factor on the tracked loss inside the softmax.
    answer : gradient on all own data, or the sum of the gradients along an epoch.
    ensemble : other peers' models kept for prediction, 0 = all.
    """

    neighbours: int = 3
    epsilon: float = 0.3
    coin: Literal["per-round", "per-slot"] = "per-round"
    beta: float = 0.6
    tracking: Literal["ema", "accumulate"] = "ema"
    loss: Literal["mean", "sum"] = "mean"
    sharpness: float = 1.0
    answer: Literal["full-batch", "epoch"] = "full-batch"
    ensemble: int = 16
    grid: ClassVar[Grid] = {"sharpness": (1.0, 3.0, 9.0)}

    def __post_init__(self) -> None:
        if self.neighbours < 0 or self.ensemble < 0:
            raise ValueError("neighbours and ensemble must not be negative")
        if not 0 <= self.epsilon <= 1:
            raise ValueError("epsilon must lie in [0, 1]")
        if not 0 < self.beta <= 1:
            raise ValueError("beta must be above 0 and at most 1")
        if self.sharpness <= 0:
            raise ValueError("sharpness must be above 0")

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps: its own and those that it predicts with."""
        return 1 + min(self.ensemble or peers, peers)


@dataclass(frozen=True)
class FedeRiCoState(State):
    """What a peer remembers of the others.

    Attributes
    ----------
    tracked : (P, n) L. last : (P, n) l, nan for peers never heard from.
    members : (P, K, d) other peers' models for prediction. authors : (P, K) whose, -1 for nobody's.
    """

    tracked: Floats
    last: Floats
    members: Tensor
    authors: Ints


class FedeRiCo(Rule[FedeRiCoState]):
    """Train the models that explain my data, mine among them, and predict with their mixture."""

    common_start = False

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._all = np.arange(len(engine.peers))
        self._examples_p = engine.data.shards["train"].lengths_p
        self._plain = replace(engine.training, optimizer="sgd", momentum=0.0, weight_decay=0.0)

    def init(self) -> FedeRiCoState:
        start, options = self.start(), self.options
        most = int(self.engine.topology.sum(axis=1).max()) if options.neighbours else 0
        places = len(self._all), min(most, options.ensemble or most)
        zero_pn = np.zeros((len(self._all), self.engine.n))
        return FedeRiCoState(
            **vars(start),
            tracked=zero_pn,
            last=np.full_like(zero_pn, np.nan),
            members=start.x.new_zeros((*places, self.engine.d)),
            authors=np.full(places, NOBODY),
        )

    def wants(self, state: FedeRiCoState, round_: int) -> Ints:
        wanted_pn = np.zeros(state.last.shape, dtype=np.bool_)
        unheard = 0.0 if round_ <= self.engine.n else np.inf
        score_pn = np.where(np.isnan(state.last), unheard, state.tracked)
        for p, peer in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(peer), round_, Purpose.CHOICE)
            others = np.flatnonzero(self.engine.topology[peer])
            wanted_pn[p, self._sample(g, others, score_pn[p])] = True
        return self.pairs(wanted_pn)

    def _sample(self, g: np.random.Generator, others: Ints, score_n: Floats) -> Ints:
        """M of the others: any, or those of least score."""
        m = min(self.options.neighbours, len(others))
        chance = g.permutation(others)
        best = chance[np.argsort(score_n[chance], kind="stable")]
        coins = g.random(1 if self.options.coin == "per-round" else m) < self.options.epsilon
        return epsilon_greedy(np.broadcast_to(coins, m), chance, best)

    def answer(
        self, state: FedeRiCoState, round_: int, asked: Letters
    ) -> tuple[FedeRiCoState, Mapping[str, Tensor]]:
        state = self.received(state, asked)
        own, x_ed = self.local(asked.recipients), asked.each("x")
        buffers, w_e = state.buffers_at(own), self.weights(state)[own, asked.senders]
        return state, {"g": self._weighted(w_e, x_ed, buffers, round_, own, asked.senders)[0]}

    def update(
        self, state: FedeRiCoState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedeRiCoState:
        if not len(sent):  # no model came, and `answer` was not called
            state = self.received(state, offers)
        w_p = self.weights(state)[self._all, self.engine.peers]
        own_pd, buffers = self._weighted(w_p, state.x, state.buffers, round_, self._all)
        g_pd = own_pd + self.answered(answers, "g", np.ones_like(state.last))
        fit = self.engine.step(state.x, g_pd, state.opt_state, round_)
        return state.trained(fit._replace(buffers=buffers))

    def received(self, state: FedeRiCoState, letters: Letters) -> FedeRiCoState:
        """E-step: the state after the models in `letters`, and the own ones, were evaluated."""
        own, last = self.local(letters.recipients), state.last.copy()
        last[self._all, self.engine.peers] = self._losses(state.x, state.buffers, self._all)
        if len(letters):
            found = self._losses(letters.each("x"), state.buffers_at(own), own)
            last[own, letters.senders] = found
        seen, beta = np.nan_to_num(last), self.options.beta
        if self.options.tracking == "ema":
            tracked = (1 - beta) * state.tracked + beta * seen
        else:
            tracked = state.tracked + seen
        state = replace(state, tracked=tracked, last=last, authors=state.authors.copy())
        if placed := kept(state.authors, self.weights(state), own, letters):
            members, (p, k) = state.members.clone(), np.array(list(placed)).T
            members[p, k] = letters.each("x")[list(placed.values())]
            state = replace(state, members=members)
        return state

    def weights(self, state: FedeRiCoState) -> Floats:
        return self._softmax(state, ~np.isnan(state.last) | (self.eye() > 0))

    def mixture(self, state: FedeRiCoState) -> Mixture | None:
        if not state.authors.shape[1]:  # nobody is ever heard
            return None
        peers = self.engine.peers
        w_pn = self._softmax(state, known(state.authors, peers, self.engine.n))
        w_pm, x_pmd = mixture(state.x, state.members, state.authors, w_pn, peers)
        members = w_pm.shape[1]
        own = {k: v[:, None].expand(-1, members, *v.shape[1:]) for k, v in state.buffers.items()}
        return Mixture(self.engine.tensor(w_pm), x_pmd, own)

    def _softmax(self, state: FedeRiCoState, among_pn: Bools) -> Floats:
        z_pn = np.where(among_pn, -self.options.sharpness * state.tracked, -np.inf)
        w_pn = np.exp(z_pn - z_pn.max(axis=1, keepdims=True))
        weights: Floats = w_pn / w_pn.sum(axis=1, keepdims=True)
        return weights

    def _losses(self, x_ed: Tensor, buffers: Buffers, own: Ints) -> Floats:
        losses_e = self.engine.losses(x_ed, buffers, "train", own).losses.cpu().numpy()
        scale_e = self._examples_p[own] if self.options.loss == "sum" else 1.0
        return np.nan_to_num(scale_e * losses_e, nan=_WORST, posinf=_WORST)

    def _weighted(
        self,
        w_e: Floats,
        x_ed: Tensor,
        buffers: Buffers,
        round_: int,
        own: Ints,
        partners: Ints | None = None,
    ) -> tuple[Tensor, Buffers]:
        """What to descend at any models on hosted peers' data, times weights, and the buffers."""
        if self.options.answer == "full-batch":
            found = self.engine.gradients(x_ed, buffers, self.engine.data.everything(own))
            g_ed, after = found.values, found.buffers
            if self.options.loss == "sum":
                w_e = w_e * self._examples_p[own]
        else:
            purpose = Purpose.TRAIN if partners is None else Purpose.ANSWER
            batches = self.engine.batches(round_, purpose, peers=own, partners=partners, epochs=1)
            fit = self.engine.fit(x_ed, buffers, {}, batches, training=self._plain)
            g_ed, after = (x_ed - fit.x) / self._plain.rate(round_), fit.buffers
        return self.engine.tensor(w_e)[:, None] * g_ed, after
