"""DAC: a peer samples the peers to average with by the losses of their models on its data.

Listo Zec, Ekblom, Willbo, Mogren, Girdzijauskas, "Decentralized adaptive clustering of deep nets is
beneficial for client collaboration", FL-IJCAI 2022, algorithm 1, and the authors' code
(edvinli/DAC@45209fd). Symbols: w_i `state.x`, s_ij `state.scores` (0: unknown), tau `tau`,
m `models`, n_k the number of training samples. In a round each peer

1. trains on its own data, and pulls the models w_j and the scores s_j. of m peers, drawn without
   replacement with p_ij = exp(tau_t s_ij) / sum_k exp(tau_t s_ik), k != i;
2. s_ij = 1 / f_i(w_j) for the received models, f_i its loss on its training data;
3. gossip: for each peer j that it never received but a sender k knows, s_kj > 0, it takes over
   s_ij = s_kj of the sender k with the largest s_ik among those that know j;
4. w_i <- sum_k n_k w_k / sum_k n_k over the received models and its own.

DAC: tau_t = tau. DAC-var (`tau-schedule = "rising"`): tau_t = 2 tau / (1 + exp(-0.2 (t - 2))) - tau
+ 1 in round t >= 2, from 1 up to tau + 1. All scores of round 1 are 0, so its draw is uniform.

Readings and deviations: all peers average at the same time (in the code one after another, so that
later peers pull models that are already averaged). The paper trains before round 1 and ends rounds
with training; here a round begins with training and ends with the average, which is evaluated and
saved. `keep-models = "best"` keeps the best on validation data, as the paper does. Losses are over
all training examples. The draw adds Gumbel noise to tau_t s_ij and takes the m largest, which has
the same distribution and cannot fail if fewer than m probabilities are above 0. A score taken over
is at most the largest that the peer measured in that round, so that no sender can direct others to
a peer of its choice. Letters carry 1 / (1 + 1 / s_kj), between 0 (unknown) and 1, so they do not
look oversized. The score of a requested peer that sent no model is halved. Batch-norm buffers stay
personal.

PENS: peers whose models do well on a peer's data in the first rounds become its neighbours.

Onoszko, Karlsson, Mogren, Listo Zec, "Decentralized federated learning of deep neural networks on
non-iid data", FL-ICML 2021, section 3, and the authors' code (guskarls/dfl-pens@92ce009) with that
of DAC (edvinli/DAC@45209fd). Symbols: w_i `state.x`, the number of times that i selected j
`state.counts`, m `models`, n_k the number of training samples. In a round each peer trains
on its own data; then, in the first `selection-rounds` rounds, it

1. pulls the models of m random peers, and selects the `best` ones with the smallest loss on its
   training data;
2. w_i <- sum_k n_k w_k / sum_k n_k over the selected models and its own.

Its neighbours are the peers that it selected more often than a random choice would, whose expected
count is the mean count. In every later round it pulls the models of m random neighbours, and
averages with all of them.

Readings and deviations: a round here begins with training and ends with the average, see
DAC; all peers average at the same time. The expected count is that of a
choice among the peer's neighbours in the topology, best * selection-rounds / (n - 1) on a full one
(DAC's code divides by n; dfl-pens compares with the expected number of pulls less 1). It is
computed as the mean of the counts, so that missing models do not raise it. If no peer is above it,
all counts are equal and every peer is a neighbour. The optimizer's state is kept across averages.
Batch-norm buffers stay personal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import highest
from coterie.clients.parts.validation import CHOOSES_MODELS
from coterie.clients.rule import Weighted
from coterie.ranges import option
from coterie.strategies.plans import Wanted

_MAX_SCORE = 1e12
_RISE = 0.2


@dataclass(frozen=True)
class DACState(Weighted):
    """State of DAC."""

    scores: Floats  # similarity to every peer, (P, n); 0 where unknown
    measured: Bools  # scores that come from a received model, (P, n); the others from gossip


class DAC(
    LocalTraining[DACState], strategy=Wanted, group="unknown", learns_graph=True,
    exposes=CHOOSES_MODELS,
):  # fmt: skip
    """Averages with peers drawn by the losses of their models."""

    models: int = option(
        5,
        "Number of models that each peer pulls per round, m; at most the peers in the smallest "
        "cluster less one, because all of them are averaged.",
        low=1, grid=(1, 3, 5),
    )  # fmt: skip
    tau: float = option(
        30.0, "Inverse temperature of the sampling probabilities; 0 samples uniformly.", low=0
    )
    tau_schedule: Literal["constant", "rising"] = option(
        "rising",
        "tau in all rounds (DAC), or rising from 1 to tau + 1 (DAC-var). A large constant tau "
        "keeps the first peers that were sampled, because unknown ones have score 0.",
    )
    gossip: bool = option(
        True,
        "Send the scores of other peers with the model, and use those received for unknown peers.",
    )

    def init(self) -> DACState:
        unknown = np.zeros_like(self.eye())
        return self.begin(scores=unknown, measured=unknown > 0)

    def wants(self, s: DACState, t: int) -> Bools:
        noise = np.array([g.gumbel(size=self.engine.n) for g in self.draws(t)])
        drawn = self.temperature(t) * s.scores + noise
        return highest(np.where(self.near, drawn, -np.inf), self.models)

    def temperature(self, t: int) -> float:
        if self.tau_schedule == "constant":
            return self.tau
        return float(2 * self.tau / (1 + np.exp(-_RISE * max(t - 2, 0))) - self.tau + 1)

    def offer(self, s: DACState, t: int) -> tuple[DACState, Mapping[str, Tensor]]:
        s, offers = super().offer(s, t)
        known = {"known": self.engine.tensor(encoded(s.scores))} if self.gossip else {}
        return s, {**offers, **known}

    def update(self, s: DACState, inbox: Inbox) -> DACState:
        silent = self.wants(s, inbox.round) & ~inbox.heard
        scores = np.where(silent, s.scores / 2, s.scores)
        scores = np.where(inbox.heard, similarity(inbox.losses(s, "train")), scores)
        measured = s.measured | inbox.heard
        if self.gossip:
            scores_sn = decoded(inbox["known"].double().cpu().numpy())
            settled = measured | (self.eye() > 0)
            for p in np.flatnonzero(inbox.heard.any(axis=1)):
                rows = np.searchsorted(inbox.authors, np.flatnonzero(inbox.heard[p]))
                learned_n = learned(scores[p], inbox.heard[p], scores_sn[rows])
                scores[p] = np.where(settled[p], scores[p], learned_n)
        x_pd, w_pn = inbox.average("x", self.shares()), inbox.shares(self.shares())
        return replace(s, x=x_pd, scores=scores, measured=measured, w=w_pn)


def similarity(losses: Floats) -> Floats:
    """Return the score 1 / loss of each loss; 0 where that is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.minimum(1 / losses, _MAX_SCORE)
    return np.where(np.isfinite(scores), np.maximum(scores, 0.0), 0.0)


def encoded(scores: Floats) -> Floats:
    """Return 1 / (1 + 1 / s), between 0 and 1, of scores s; 0 stays 0."""
    return np.asarray(scores / (1 + scores))


def decoded(values: Floats) -> Floats:
    """Return the scores of `encoded` values; of invalid values, the nearest valid score."""
    values = np.clip(np.nan_to_num(values), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.minimum(values / (1 - values), _MAX_SCORE)


def learned(scores_n: Floats, senders_n: Bools, theirs_kn: Floats) -> Floats:
    """Return the scores (n,) that a peer takes over from the senders of a round.

    For each peer j, it is the score that the most similar sender knows, at most the largest score
    of a sender; the peer's own score where no sender knows j. `theirs_kn` are the senders' scores.
    """
    trust_k = scores_n[senders_n]
    first = np.argsort(-trust_k, kind="stable")
    knows_kn = theirs_kn[first] > 0
    learned_n = theirs_kn[first[knows_kn.argmax(axis=0)], np.arange(len(scores_n))]
    return np.where(knows_kn.any(axis=0), np.minimum(learned_n, trust_k.max()), scores_n)


@dataclass(frozen=True)
class PENSState(Weighted):
    """State of PENS."""

    counts: Floats  # number of times that each peer selected every other, (P, n)


class PENS(
    LocalTraining[PENSState], strategy=Wanted, group="unknown", learns_graph=True,
    exposes=CHOOSES_MODELS,
):  # fmt: skip
    """Neighbours are peers whose models often had the smallest losses."""

    models: int = option(10, "Number of models that each peer pulls per round, m.", low=1)
    best: int = option(
        2, "Number of these that it averages with in a selection round.", low=1, grid=(1, 2, 4)
    )
    selection_rounds: int = option(
        10, "Number of rounds in which peers select; then the neighbours are fixed.", low=1
    )

    def init(self) -> PENSState:
        return self.begin(counts=np.zeros_like(self.eye()))

    def wants(self, s: PENSState, t: int) -> Bools:
        candidates = self.near if t <= self.selection_rounds else self.neighbours(s)
        wanted = np.zeros_like(candidates)
        for p, g in enumerate(self.draws(t)):
            shuffled = g.permutation(self.engine.n)
            wanted[p, shuffled[candidates[p, shuffled]][: self.models]] = True
        return wanted

    def update(self, s: PENSState, inbox: Inbox) -> PENSState:
        counts, used = s.counts, inbox.heard
        if inbox.round <= self.selection_rounds:
            used = highest(-inbox.losses(s, "train"), self.best)
            counts = counts + used
        shares_pn = self.shares() * (used | (self.eye() > 0))
        x_pd, w_pn = inbox.average("x", shares_pn), inbox.shares(shares_pn)
        return replace(s, x=x_pd, counts=counts, w=w_pn)

    def neighbours(self, s: PENSState) -> Bools:
        """Return a mask (P, n) of the peers that each peer selected more often than expected."""
        near = self.near
        expected_p1 = (s.counts * near).sum(axis=1, keepdims=True)
        expected_p1 /= np.maximum(near.sum(axis=1, keepdims=True), 1)
        often = near & (s.counts > expected_p1)
        return np.where(often.any(axis=1, keepdims=True), often, near)
