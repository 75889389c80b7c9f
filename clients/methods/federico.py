"""FedeRiCo: federating with the right collaborators (papers: federico, sections 3.2 and 3.3).

Expectation maximisation over which model explains which peer's data, by gradient steps and sampled
neighbours. Symbols: phi_i `state.x`, with a different random start per peer (from a common start
all models stay equal); l_ij `state.last` and L_ij `state.tracked`, last and tracked loss of phi_j
on peer i's data; w_ij `weights`; M `neighbours`. In round t peer i

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
from typing import Literal

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Bools, Buffers, Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.mixture import Mixture
from coterie.clients.parts.ensemble import EMPTY, known, mixture, place
from coterie.clients.parts.simplex import softmax
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Rule, State, epsilon_greedy
from coterie.ranges import option
from coterie.strategies.plans import WantedAnswers

_WORST = 1e30  # replaces a nan or infinite loss, so that the model gets weight 0


@dataclass(frozen=True)
class FedeRiCoState(State):
    """State of FedeRiCo."""

    tracked: Floats  # tracked losses L, (P, n)
    last: Floats  # last losses l, (P, n); nan for peers whose model never arrived
    members: Tensor  # models of other peers, for prediction, (P, K, d)
    authors: Ints  # owners of these models, (P, K); -1 for an empty slot


class FedeRiCo(
    Rule[FedeRiCoState], strategy=WantedAnswers, group="unknown", learns_graph=True,
    exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Trains the models that explain its data and predicts with their mixture."""

    neighbours: int = option(3, "Number of other peers that a peer samples per round, M.", low=0)
    epsilon: float = option(0.3, "Probability of sampling uniformly.", low=0, high=1)
    coin: Literal["per-round", "per-slot"] = option(
        "per-round",
        "Sample uniformly or greedily as drawn once per round, or once for each of the M "
        "neighbours.",
    )
    beta: float = option(0.6, "Weight of the newest loss in the tracked one.", above=0, high=1)
    tracking: Literal["ema", "accumulate"] = option(
        "ema",
        '"ema" is the exponential moving average of the losses, "accumulate" their sum over rounds '
        "(without `beta`).",
    )
    loss: Literal["mean", "sum"] = option(
        "mean",
        "Mean over the peer's examples (soft weights) or sum (one-hot weights within a few "
        "rounds).",
    )
    sharpness: float = option(
        1.0, "Factor on the tracked loss inside the softmax.", above=0, grid=(1.0, 3.0, 9.0)
    )
    answer_: Literal["full-batch", "epoch"] = option(
        "full-batch",
        '"full-batch" is the gradient on all of the peer\'s data, "epoch" the sum of the gradients '
        "along an epoch.",
    )
    starts: Literal["different", "common"] = option(
        "different", "Start of the peers: a random draw each, or one model for all."
    )
    ensemble: int = option(
        16, "Number of other peers' models kept for prediction; 0 for all.", low=0
    )

    @property
    def common_start(self) -> bool:
        return self.starts == "common"

    def models_kept(self, peers: int) -> int:
        return 1 + min(self.ensemble or peers, peers)

    def init(self) -> FedeRiCoState:
        start, zero_pn = self.start(), np.zeros_like(self.eye())
        degree = int(self.engine.topology.sum(axis=1).max()) if self.neighbours else 0
        slots = len(zero_pn), min(degree, self.ensemble or degree)
        return self.begin(
            start, tracked=zero_pn, last=np.full_like(zero_pn, np.nan),
            members=start.x.new_zeros((*slots, self.engine.d)), authors=np.full(slots, EMPTY),
        )  # fmt: skip

    def wants(self, s: FedeRiCoState, t: int) -> Bools:
        wanted_pn = np.zeros(s.last.shape, dtype=np.bool_)
        unknown = 0.0 if t <= self.engine.n else np.inf
        score_pn = np.where(np.isnan(s.last), unknown, s.tracked)
        for p, g in enumerate(self.draws(t)):
            wanted_pn[p, self._sample(g, np.flatnonzero(self.near[p]), score_pn[p])] = True
        return wanted_pn

    def _sample(self, g: np.random.Generator, others: Ints, score_n: Floats) -> Ints:
        """Sample M of the other peers, uniformly or with the smallest score."""
        m = min(self.neighbours, len(others))
        shuffled = g.permutation(others)
        best = shuffled[np.argsort(score_n[shuffled], kind="stable")]
        coins = g.random(1 if self.coin == "per-round" else m) < self.epsilon
        return epsilon_greedy(np.broadcast_to(coins, m), shuffled, best)

    def receive(self, s: FedeRiCoState, asked: Inbox) -> FedeRiCoState:
        """Run the E-step: evaluate the received models and the peers' own."""
        last, hosted = s.last.copy(), np.arange(len(s.x))
        last[hosted, self.engine.peers] = self._losses(s.x, s.buffers, hosted)
        if len(asked):
            x_ed, buffers = asked.offers.each("x"), s.buffers_at(asked.peer)
            last[asked.peer, asked.senders] = self._losses(x_ed, buffers, asked.peer)
        losses_pn, beta = np.nan_to_num(last), self.beta
        if self.tracking == "ema":
            tracked = (1 - beta) * s.tracked + beta * losses_pn
        else:
            tracked = s.tracked + losses_pn
        s = replace(s, tracked=tracked, last=last, authors=s.authors.copy())
        if placed := place(s.authors, self.weights(s), asked.peer, asked.senders):
            members, (p, k) = s.members.clone(), np.array(list(placed)).T
            members[p, k] = asked.offers.each("x")[list(placed.values())]
            s = replace(s, members=members)
        return s

    def answer(self, s: FedeRiCoState, asked: Inbox) -> Mapping[str, Tensor]:
        x_ed, buffers = asked.offers.each("x"), s.buffers_at(asked.peer)
        w_e = self.weights(s)[asked.peer, asked.senders]
        return {"g": self._weighted(w_e, x_ed, buffers, asked.round, asked.peer, asked.senders)[0]}

    def update(self, s: FedeRiCoState, inbox: Inbox) -> FedeRiCoState:
        if not len(inbox.sent):  # no model arrived, so there was nothing to answer
            s = self.receive(s, inbox)
        hosted = np.arange(len(s.x))
        w_p = self.weights(s)[hosted, self.engine.peers]
        own_pd, buffers = self._weighted(w_p, s.x, s.buffers, inbox.round, hosted)
        g_pd = own_pd + inbox.answered("g", np.ones_like(s.last))
        fit = self.engine.step(s.x, g_pd, s.opt_state, inbox.round)
        return s.trained(fit._replace(buffers=buffers))

    def weights(self, s: FedeRiCoState) -> Floats:
        return softmax(-self.sharpness * s.tracked, ~np.isnan(s.last) | (self.eye() > 0))

    def mixture(self, s: FedeRiCoState) -> Mixture | None:
        if not s.authors.shape[1]:  # no slots: a peer never receives a model
            return None
        peers = self.engine.peers
        w_pn = softmax(-self.sharpness * s.tracked, known(s.authors, peers, self.engine.n))
        w_pm, x_pmd, _ = mixture(s.x, s.members, s.authors, w_pn, peers)
        return Mixture(self.engine.tensor(w_pm), x_pmd, s.buffers_of_members(w_pm.shape[1]))

    def _losses(self, x_ed: Tensor, buffers: Buffers, peer_e: Ints) -> Floats:
        losses_e = self.engine.losses(x_ed, buffers, "train", peer_e).losses.cpu().numpy()
        scale_e = self._examples[peer_e] if self.loss == "sum" else 1.0
        return np.nan_to_num(scale_e * losses_e, nan=_WORST, posinf=_WORST)

    @property
    def _examples(self) -> Ints:
        return self.engine.data.shards["train"].lengths_p

    def _weighted(
        self, w_e: Floats, x_ed: Tensor, buffers: Buffers, t: int, peer_e: Ints,
        partners: Ints | None = None,
    ) -> tuple[Tensor, Buffers]:  # fmt: skip
        """Return the weighted gradients (E, d) of hosted peers at any models, and the buffers."""
        engine = self.engine
        if self.answer_ == "full-batch":
            gradients = engine.gradients(x_ed, buffers, engine.data.everything(peer_e))
            g_ed, after = gradients.values, gradients.buffers
            if self.loss == "sum":
                w_e = w_e * self._examples[peer_e]
        else:
            plain = replace(engine.training, optimizer="sgd", momentum=0.0, weight_decay=0.0)
            purpose = Purpose.TRAIN if partners is None else Purpose.ANSWER
            batches = engine.batches(t, purpose, peers=peer_e, partners=partners, epochs=1)
            fit = engine.fit(x_ed, buffers, {}, batches, training=plain)
            g_ed, after = (x_ed - fit.x) / plain.rate(t), fit.buffers
        return engine.tensor(w_e)[:, None] * g_ed, after
