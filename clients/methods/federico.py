"""FedeRiCo: federating with the right collaborators (papers: federico, sections 3.2 and 3.3).

Expectation maximisation over which model explains which peer's data, by gradient steps and sampled
neighbours. Symbols: phi_i `state.x`, with a different random start per peer (from a common start
all models stay equal); l_ij `state.last` and L_ij `state.tracked`, last and tracked loss of phi_j
on peer i's data; w_ij `weights`; M `options.neighbours`. In round t peer i

1. samples B, itself and M others: uniformly with probability epsilon, else those with the smallest
   L_ij;
2. receives phi_b and evaluates l_ib on its data; other l_ij keep their last value;
3. E-step: L_ij <- (1 - beta) L_ij + beta l_ij (or L_ij + l_ij), w_i. = softmax(-sharpness L_i.);
4. M-step: answers each owner b with w_ib times the gradient of l_ib at phi_b  (equation 8);
5. applies its optimizer to the sum of the answers it received and its own.

It predicts with the mixture sum_j w_ij h_phi_j(x) of the models it received last.

Readings and deviations: L starts at 0, so peers whose model never arrived look best and are sampled
first; they have weight 0 until it does (so M = 0 is local training). After n rounds, when they may
have left, only uniform samples reach them. Ties are broken at random. "sum" is the likelihood of
the text; "mean" divides losses and gradients by n_i. A full-batch answer ignores minibatches and
`local-steps`: a round is one step. An "epoch" answer is the sum of the gradients along an epoch of
plain SGD, (start - end) / learning-rate, on minibatch means for either loss. For prediction a peer
keeps its own model and the `ensemble` others with the largest weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts.ensemble import EMPTY, known, mixture, place
from coterie.clients.parts.exploring import epsilon_greedy
from coterie.clients.rule import Floats, Grid, Mixture, Rule, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine
    from coterie.clients.engine.network import Buffers

_WORST = 1e30  # replaces a nan or infinite loss, so that the model gets weight 0


@dataclass(frozen=True)
class Options:
    """Options of FedeRiCo.

    Attributes
    ----------
    neighbours : int
        Number of other peers that a peer samples per round, M.
    epsilon : float
        Probability of sampling uniformly.
    coin : {"per-round", "per-slot"}
        Sample uniformly or greedily as drawn once per round, or once for each of the M neighbours.
    beta : float
        Weight of the newest loss in the tracked one.
    tracking : {"ema", "accumulate"}
        "ema" is the exponential moving average of the losses, "accumulate" their sum over rounds
        (without `beta`).
    loss : {"mean", "sum"}
        Mean over the peer's examples (soft weights) or sum (one-hot weights within a few rounds).
    sharpness : float
        Factor on the tracked loss inside the softmax.
    answer : {"full-batch", "epoch"}
        "full-batch" is the gradient on all of the peer's data, "epoch" the sum of the gradients
        along an epoch.
    ensemble : int
        Number of other peers' models kept for prediction; 0 for all.
    """

    neighbours: Annotated[int, Range(0)] = 3
    epsilon: Annotated[float, Range(0, 1)] = 0.3
    coin: Literal["per-round", "per-slot"] = "per-round"
    beta: Annotated[float, Range(above=0, high=1)] = 0.6
    tracking: Literal["ema", "accumulate"] = "ema"
    loss: Literal["mean", "sum"] = "mean"
    sharpness: Annotated[float, Range(above=0)] = 1.0
    answer: Literal["full-batch", "epoch"] = "full-batch"
    ensemble: Annotated[int, Range(0)] = 16
    grid: ClassVar[Grid] = {"sharpness": (1.0, 3.0, 9.0)}

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps: its own and those that it predicts with."""
        return 1 + min(self.ensemble or peers, peers)


@dataclass(frozen=True)
class FedeRiCoState(State):
    """State of FedeRiCo.

    Attributes
    ----------
    tracked : ndarray, (P, n)
        Tracked losses L.
    last : ndarray, (P, n)
        Last losses l; nan for peers whose model never arrived.
    members : Tensor, (P, K, d)
        Models of other peers, for prediction.
    authors : ndarray of int, (P, K)
        Owners of these models; -1 for an empty slot.
    """

    tracked: Floats
    last: Floats
    members: Tensor
    authors: Ints


class FedeRiCo(Rule[FedeRiCoState]):
    """FedeRiCo: train the models that explain a peer's data, and predict with their mixture."""

    common_start = False

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._all = np.arange(len(engine.peers))
        self._examples_p = engine.data.shards["train"].lengths_p
        self._plain = replace(engine.training, optimizer="sgd", momentum=0.0, weight_decay=0.0)

    def init(self) -> FedeRiCoState:
        start, options = self.start(), self.options
        degree = int(self.engine.topology.sum(axis=1).max()) if options.neighbours else 0
        slots = len(self._all), min(degree, options.ensemble or degree)
        zero_pn = np.zeros((len(self._all), self.engine.n))
        return FedeRiCoState(
            **vars(start),
            tracked=zero_pn,
            last=np.full_like(zero_pn, np.nan),
            members=start.x.new_zeros((*slots, self.engine.d)),
            authors=np.full(slots, EMPTY),
        )

    def wants(self, state: FedeRiCoState, round_: int) -> Ints:
        wanted_pn = np.zeros(state.last.shape, dtype=np.bool_)
        unknown = 0.0 if round_ <= self.engine.n else np.inf
        score_pn = np.where(np.isnan(state.last), unknown, state.tracked)
        for p, peer in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(peer), round_, Purpose.CHOICE)
            others = np.flatnonzero(self.engine.topology[peer])
            wanted_pn[p, self._sample(g, others, score_pn[p])] = True
        return self.pairs(wanted_pn)

    def _sample(self, g: np.random.Generator, others: Ints, score_n: Floats) -> Ints:
        """Sample M of the other peers, uniformly or with the smallest score."""
        m = min(self.options.neighbours, len(others))
        shuffled = g.permutation(others)
        best = shuffled[np.argsort(score_n[shuffled], kind="stable")]
        coins = g.random(1 if self.options.coin == "per-round" else m) < self.options.epsilon
        return epsilon_greedy(np.broadcast_to(coins, m), shuffled, best)

    def answer(
        self, state: FedeRiCoState, round_: int, asked: Letters
    ) -> tuple[FedeRiCoState, Mapping[str, Tensor]]:
        state = self.received(state, asked)
        local_e, x_ed = self.local(asked.recipients), asked.each("x")
        buffers, w_e = state.buffers_at(local_e), self.weights(state)[local_e, asked.senders]
        return state, {"g": self._weighted(w_e, x_ed, buffers, round_, local_e, asked.senders)[0]}

    def update(
        self, state: FedeRiCoState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedeRiCoState:
        if not len(sent):  # no model arrived, so `answer` was not called
            state = self.received(state, offers)
        w_p = self.weights(state)[self._all, self.engine.peers]
        local_pd, buffers = self._weighted(w_p, state.x, state.buffers, round_, self._all)
        g_pd = local_pd + self.answered(answers, "g", np.ones_like(state.last))
        fit = self.engine.step(state.x, g_pd, state.opt_state, round_)
        return state.trained(fit._replace(buffers=buffers))

    def received(self, state: FedeRiCoState, letters: Letters) -> FedeRiCoState:
        """Run the E-step: evaluate the models in `letters` and the peers' own."""
        local_e, last = self.local(letters.recipients), state.last.copy()
        last[self._all, self.engine.peers] = self._losses(state.x, state.buffers, self._all)
        if len(letters):
            losses_e = self._losses(letters.each("x"), state.buffers_at(local_e), local_e)
            last[local_e, letters.senders] = losses_e
        losses_pn, beta = np.nan_to_num(last), self.options.beta
        if self.options.tracking == "ema":
            tracked = (1 - beta) * state.tracked + beta * losses_pn
        else:
            tracked = state.tracked + losses_pn
        state = replace(state, tracked=tracked, last=last, authors=state.authors.copy())
        if placed := place(state.authors, self.weights(state), local_e, letters):
            members, (p, k) = state.members.clone(), np.array(list(placed)).T
            members[p, k] = letters.each("x")[list(placed.values())]
            state = replace(state, members=members)
        return state

    def weights(self, state: FedeRiCoState) -> Floats:
        return self._softmax(state, ~np.isnan(state.last) | (self.eye() > 0))

    def mixture(self, state: FedeRiCoState) -> Mixture | None:
        if not state.authors.shape[1]:  # no slots: a peer never receives a model
            return None
        peers = self.engine.peers
        w_pn = self._softmax(state, known(state.authors, peers, self.engine.n))
        w_pm, x_pmd = mixture(state.x, state.members, state.authors, w_pn, peers)
        members = w_pm.shape[1]
        buffers = {
            name: value[:, None].expand(-1, members, *value.shape[1:])
            for name, value in state.buffers.items()
        }
        return Mixture(self.engine.tensor(w_pm), x_pmd, buffers)

    def _softmax(self, state: FedeRiCoState, among_pn: Bools) -> Floats:
        z_pn = np.where(among_pn, -self.options.sharpness * state.tracked, -np.inf)
        w_pn = np.exp(z_pn - z_pn.max(axis=1, keepdims=True))
        weights: Floats = w_pn / w_pn.sum(axis=1, keepdims=True)
        return weights

    def _losses(self, x_ed: Tensor, buffers: Buffers, local_e: Ints) -> Floats:
        losses_e = self.engine.losses(x_ed, buffers, "train", local_e).losses.cpu().numpy()
        scale_e = self._examples_p[local_e] if self.options.loss == "sum" else 1.0
        return np.nan_to_num(scale_e * losses_e, nan=_WORST, posinf=_WORST)

    def _weighted(
        self,
        w_e: Floats,
        x_ed: Tensor,
        buffers: Buffers,
        round_: int,
        local_e: Ints,
        partners: Ints | None = None,
    ) -> tuple[Tensor, Buffers]:
        """Return the weighted gradients (E, d) of hosted peers at any models, and the buffers."""
        if self.options.answer == "full-batch":
            gradients = self.engine.gradients(x_ed, buffers, self.engine.data.everything(local_e))
            g_ed, after = gradients.values, gradients.buffers
            if self.options.loss == "sum":
                w_e = w_e * self._examples_p[local_e]
        else:
            batches = self.engine.batches(
                round_,
                Purpose.TRAIN if partners is None else Purpose.ANSWER,
                peers=local_e,
                partners=partners,
                epochs=1,
            )
            fit = self.engine.fit(x_ed, buffers, {}, batches, training=self._plain)
            g_ed, after = (x_ed - fit.x) / self._plain.rate(round_), fit.buffers
        return self.engine.tensor(w_e)[:, None] * g_ed, after
