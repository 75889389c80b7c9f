"""DAC: a peer samples the peers to average with by the losses of their models on its data.

Listo Zec, Ekblom, Willbo, Mogren, Girdzijauskas, "Decentralized adaptive clustering of deep nets is
beneficial for client collaboration", FL-IJCAI 2022, algorithm 1, and the authors' code
(edvinli/DAC@45209fd). Symbols: w_i `state.x`, s_ij `state.scores` (0: unknown), tau `options.tau`,
m `options.models`, n_k the number of training samples. In a round each peer

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_MAX_SCORE = 1e12
_RISE = 0.2


@dataclass(frozen=True)
class Options:
    """Options of DAC.

    Attributes
    ----------
    models : int
        Number of models that each peer pulls per round, m; at most the peers in the smallest
        cluster less one, because all of them are averaged.
    tau : float
        Inverse temperature of the sampling probabilities; 0 samples uniformly.
    tau_schedule : {"constant", "rising"}
        tau in all rounds (DAC), or rising from 1 to tau + 1 (DAC-var). A large constant tau keeps
        the first peers that were sampled, because unknown ones have score 0.
    gossip : bool
        Send the scores of other peers with the model, and use those received for unknown peers.
    """

    models: Annotated[int, Range(1)] = 5
    tau: Annotated[float, Range(0)] = 30.0
    tau_schedule: Literal["constant", "rising"] = "rising"
    gossip: bool = True
    grid: ClassVar[Grid] = {"models": (1, 3, 5)}


@dataclass(frozen=True)
class DACState(State):
    """State of DAC.

    Attributes
    ----------
    scores : ndarray, (P, n)
        Similarity to every peer; 0 where unknown.
    measured : ndarray of bool, (P, n)
        Mask of the scores that come from a received model; the others come from gossip.
    w : ndarray, (P, n)
        Weights of the last average.
    """

    scores: Floats
    measured: Bools
    w: Floats


class DAC(LocalTraining[DACState]):
    """DAC: average with peers sampled by the loss of their models."""

    def init(self) -> DACState:
        eye = self.eye()
        unknown = np.zeros_like(eye)
        return DACState(**vars(self.start()), scores=unknown, measured=unknown > 0, w=eye)

    def wants(self, state: DACState, round_: int) -> Ints:
        return self.pairs(self._wanted(state, round_))

    def offer(self, state: DACState, round_: int) -> tuple[DACState, Mapping[str, Tensor]]:
        state, offers = super().offer(state, round_)
        if not self.options.gossip:
            return state, offers
        return state, {**offers, "known": self.engine.tensor(encoded(state.scores))}

    def update(
        self, state: DACState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> DACState:
        received = offers.senders_to(self.engine.peers, self.engine.n)
        silent = self._wanted(state, round_) & ~received
        scores = np.where(silent, state.scores / 2, state.scores)
        judges = self.local(offers.recipients)
        if len(judges):
            buffers = state.buffers_at(judges)
            x_ed = offers["x"][offers.rows]
            losses_e = self.engine.losses(x_ed, buffers, "train", judges).losses.cpu().numpy()
            scores[judges, offers.senders] = similarity(losses_e)
        measured = state.measured | received
        if self.options.gossip:
            scores_sn = decoded(offers["known"].double().cpu().numpy())
            settled = measured | (self.eye() > 0)
            for p in np.flatnonzero(received.any(axis=1)):
                rows = np.searchsorted(offers.authors, np.flatnonzero(received[p]))
                learned_n = learned(scores[p], received[p], scores_sn[rows])
                scores[p] = np.where(settled[p], scores[p], learned_n)
        w_pn = self.present_weights(offers, self.shares())
        x_pd = self.average(offers, "x", self.shares())
        return replace(state, x=x_pd, scores=scores, measured=measured, w=w_pn)

    def weights(self, state: DACState) -> Floats:
        return state.w

    def _wanted(self, state: DACState, round_: int) -> Bools:
        """Return a mask (P, n) of the models that each peer pulls in a round."""
        n, tau = self.engine.n, self._tau(round_)
        wanted = np.zeros(state.scores.shape, dtype=np.bool_)
        for p, i in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(i), round_, Purpose.CHOICE)
            near = np.flatnonzero(self.engine.topology[i])
            drawn = tau * state.scores[p] + g.gumbel(size=n)
            wanted[p, near[np.argsort(-drawn[near])[: self.options.models]]] = True
        return wanted

    def _tau(self, round_: int) -> float:
        """Return tau_t."""
        tau = float(self.options.tau)
        if self.options.tau_schedule == "constant":
            return tau
        return float(2 * tau / (1 + np.exp(-_RISE * max(round_ - 2, 0))) - tau + 1)


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

    Parameters
    ----------
    scores_n : ndarray, (n,)
        Scores of the peer; those of the senders are measured.
    senders_n : ndarray of bool, (n,)
        Mask of the K senders.
    theirs_kn : ndarray, (K, n)
        Their scores.

    Returns
    -------
    ndarray, (n,)
        For each peer j, the score that the most similar sender knows, at most the largest score of
        a sender; the peer's own score where no sender knows j.
    """
    trust_k = scores_n[senders_n]
    first = np.argsort(-trust_k, kind="stable")
    knows_kn = theirs_kn[first] > 0
    learned_n = theirs_kn[first[knows_kn.argmax(axis=0)], np.arange(len(scores_n))]
    return np.where(knows_kn.any(axis=0), np.minimum(learned_n, trust_k.max()), scores_n)
