"""DPFL: each peer averages with the peers whose models lower its validation loss.

Kharrat, Canini and Horvath, "Decentralized Personalized Federated Learning", algorithms 1 to 3.
Symbols: w_k `state.x`, Omega_k `state.omega`, C_k `state.chosen`, B_c `budget`, tau_init
`init_epochs`, tau_train the run's local-epochs or local-steps, P `period`, p_i the
number of training samples.

Round 1 is the preprocessing: tau_init epochs from a common start, Omega_k = BGGC(all senders),
w_k = average over Omega_k and k. In every later round a peer trains tau_train, pulls Omega_k, every
P rounds (from round 2 on) chooses C_k = GGC(Omega_k) among the received models, and averages over
C_k and k. All averages are over the pulled models. The greedy choice is `choose`.

Readings: a node holds each letter once, so round 1 pulls every model once where the paper's BGGC
pulls it twice; models that a round would not use (with `period` > 1, those outside C_k, or all of
them under "skip") are not pulled; momentum is kept across averages; a peer that joins late or
received nothing builds Omega_k in the first round in which it receives a model; batch-norm buffers
stay personal.

Random graph: DPFL with random instead of greedily chosen neighbours, as a control.

Each peer draws as many others as DPFL's budget allows, among the senders of round 1, and averages
with all of them from then on ("Decentralized Personalized Federated Learning", 4.4).

Greedy choice of collaborators, for many peers at once (DPFL's algorithms 2 and 3).

The reward R(S) of a set S of peers is minus the validation loss, on peer k's data, of the average
of their models. X grows from {k}, Y shrinks from all candidates and k; each candidate in turn
either joins X or leaves Y, depending on the gains.

One implementation covers both algorithms. Like BGGC it never holds all models at once: a first pass
streams the candidates into the mean of Y, a second one tries each against the means of X and Y.
GGC makes the same decisions from sums over sets (theorem 1). The means are running means: a model
equal to the mean leaves it unchanged, bit for bit, so that equal peers tie exactly.

Legend: p = peers of this node that choose, n = all peers, a = peers still choosing, k = the two
sets X and Y, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from coterie.clients.hints import Bools, Floats, Ints, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Letters
from coterie.clients.parts import validation
from coterie.clients.parts.validation import CHOOSES_MODELS, CHOOSES_WEIGHTS, Kept
from coterie.clients.rule import Rule, State
from coterie.ranges import option
from coterie.strategies.plans import Wanted

MODELS = ("before_averaging", "best_before_averaging", "best_after_averaging")
"""Models of a peer that are evaluated besides the personal one."""


@dataclass(frozen=True)
class DPFLState(State):
    """State of DPFL."""

    before: Kept  # models before the last averaging
    best_before: Kept  # models with the smallest validation loss so far, before averaging
    best_after: Kept  # and after
    omega: Bools  # Omega_k and k, (P, n); all peers until the graph is built
    fresh: Bools  # True until the graph is built, (P,)
    chosen: Bools  # C_k and k, (P, n)
    shares: Floats  # weights of the last average, (P, n)
    passes: Ints  # passes over the validation data that the choices took so far, (P,)


class Budgeted(Rule[DPFLState], strategy=Wanted):
    """Train, average with a budget of peers that are chosen among the senders of round 1."""

    reported = (
        "validation_passes",
        "candidates",
        *(f"{model}_test_{kind}" for model in MODELS for kind in ("loss", "accuracy")),
    )

    budget: int = option(0, "Maximum number of peers in an average; 0 for no limit.", low=0)
    budget_counts_self: bool = option(
        True, "The budget includes the peer itself, so that 5 means 4 others."
    )
    init_epochs: int = option(10, "Local epochs before the graph is built.", low=1, grid=(2, 5, 10))

    def init(self) -> DPFLState:
        start, eye = self.start(), self.eye()
        kept = validation.with_validation_loss(self.engine, start.x, start.buffers)
        return self.begin(
            start, before=kept, best_before=kept, best_after=kept,
            omega=np.ones_like(eye, dtype=np.bool_), fresh=np.ones(len(eye), dtype=np.bool_),
            chosen=eye > 0, shares=eye, passes=np.zeros(len(eye), dtype=np.int64),
        )  # fmt: skip

    def wants(self, s: DPFLState, t: int) -> Bools:
        return np.where(s.fresh[:, None], s.omega, self.used(s, t))

    def used(self, s: DPFLState, t: int) -> Bools:
        """Return a mask (P, n) of the models that each peer with a graph uses in round `t`."""
        return s.omega if self.chooses(t) else s.chosen

    def chooses(self, t: int) -> bool:
        """Return True if peers with a graph choose among their candidates in round `t`."""
        return True

    def offer(self, s: DPFLState, t: int) -> tuple[DPFLState, Mapping[str, Tensor]]:
        epochs = self.init_epochs if t == 1 else None
        s = self.fit(s, t, batches=self.engine.batches(t, epochs=epochs))
        return s, {"x": s.x}

    def update(self, s: DPFLState, inbox: Inbox) -> DPFLState:
        received_pn = inbox.heard & self.wants(s, inbox.round)
        due_p = (s.fresh | self.chooses(inbox.round)) & received_pn.any(axis=1)
        choice = self.choose(s, inbox, received_pn & due_p[:, None])
        chosen_pn = np.where(due_p[:, None], choice.chosen_pn, s.chosen)
        shares_pn = (chosen_pn & received_pn | (self.eye() > 0)) * self.engine.samples
        x_pd = inbox.average("x", shares_pn)
        shares_pn = inbox.discounted(shares_pn)
        before = validation.with_validation_loss(self.engine, s.x, s.buffers)
        after = validation.with_validation_loss(self.engine, x_pd, s.buffers)
        return replace(
            s,
            x=x_pd,
            before=before,
            best_before=validation.better(self.engine, s.best_before, before),
            best_after=validation.better(self.engine, s.best_after, after),
            omega=np.where((s.fresh & due_p)[:, None], chosen_pn, s.omega),
            fresh=s.fresh & ~due_p,
            chosen=chosen_pn,
            shares=shares_pn / shares_pn.sum(axis=1, keepdims=True),
            passes=s.passes + choice.passes_p,
        )

    def choose(self, s: DPFLState, inbox: Inbox, candidates_pn: Bools) -> Choice:
        """Choose the peers to average with, among the candidates (P, n) of each peer."""
        raise NotImplementedError

    def weights(self, s: DPFLState) -> Floats:
        return s.shares

    def metrics(self, s: DPFLState) -> Mapping[str, Floats]:
        """Return test scores of `MODELS`, validation passes, and the number of candidates."""
        metrics = {
            "validation_passes": s.passes.astype(np.float64),
            "candidates": s.omega.sum(axis=1) - 1.0,
        }
        models = (s.before, s.best_before, s.best_after)
        for name, kept in zip(MODELS, models, strict=True):
            scores = self.engine.losses(kept["x"], validation.buffers_of(kept), "test")
            known = kept["loss"].isfinite()
            metrics[f"{name}_test_loss"] = scores.losses.where(known, np.nan).cpu().numpy()
            metrics[f"{name}_test_accuracy"] = scores.accuracies.where(known, np.nan).cpu().numpy()
        return metrics

    @property
    def max_peers(self) -> int:
        """Maximum number of peers in an average, the peer itself included."""
        return self.budget + (not self.budget_counts_self) if self.budget else self.engine.n


class DPFL(Budgeted, group="unknown", learns_graph=True, validates=True, exposes=CHOOSES_WEIGHTS):
    """Averages with peers that lower its validation loss."""

    tie: Literal["add", "strict"] = option(
        "add",
        'Rule for a candidate that neither helps when added nor when dropped: "add" it, as in the '
        'paper; "strict" adds any candidate only if the validation loss does not rise.',
    )
    period: int = option(1, "Rounds between two choices of C_k.", low=1)
    refresh: Literal["reuse", "skip"] = option(
        "reuse", "In the rounds between two choices: reuse the last C_k, or skip averaging."
    )

    def chooses(self, t: int) -> bool:
        return (t - 2) % self.period == 0

    def used(self, s: DPFLState, t: int) -> Bools:
        if self.refresh == "skip" and not self.chooses(t):
            return self.eye() > 0
        return super().used(s, t)

    def choose(self, s: DPFLState, inbox: Inbox, candidates_pn: Bools) -> Choice:
        def losses(x_ed: Tensor, peers: Ints) -> Floats:
            buffers = s.buffers_at(peers)
            scores = self.engine.losses(x_ed.to(s.x), buffers, "validation", peers)
            return np.asarray(scores.losses.cpu())

        drawn = []
        for g, candidates in zip(self.draws(inbox.round), candidates_pn, strict=True):
            order = g.permutation(np.flatnonzero(candidates))
            drawn.append((order, g.random(len(order))))
        return choose(
            losses, self.engine.peers, inbox.offers, drawn, self.engine.samples,
            max_peers=self.max_peers, strict=self.tie == "strict",
        )  # fmt: skip


class RandomGraph(Budgeted, group="references", exposes=CHOOSES_MODELS):
    """DPFL with random neighbours."""

    def choose(self, s: DPFLState, inbox: Inbox, candidates_pn: Bools) -> Choice:
        chosen_pn = self.eye() > 0
        for p, g in enumerate(self.draws(inbox.round)):
            shuffled = g.permutation(np.flatnonzero(candidates_pn[p]))
            chosen_pn[p, shuffled[: self.max_peers - 1]] = True
        return Choice(chosen_pn, np.zeros(len(chosen_pn), dtype=np.int64))


WORST = 1e300  # replaces a nan or infinite loss; finite, so that gains are finite


class Choice(NamedTuple):
    """Result of the greedy choice."""

    chosen_pn: Bools  # mask of the peers that each peer chose, itself included, (P, n)
    passes_p: Ints  # number of passes over the validation data, (P,)


def choose(
    losses: Callable[[Tensor, Ints], Floats],
    peers: Ints,
    offers: Letters,
    drawn: Sequence[tuple[Ints, Floats]],
    samples_n: Floats,
    *,
    max_peers: int,
    strict: bool,
) -> Choice:
    """Run the greedy choice of all peers in parallel.

    `losses` maps models (E, d) and rows of peers (E,) to validation losses (E,). `drawn` has for
    each choosing peer its candidates in the order of trial, and a uniform draw in [0, 1) for each.
    `samples_n` are weights in averages; `max_peers` counts the peer itself. `strict`: add a
    candidate only if that does not lower R(X), also where a = b = 0.
    """

    def model(j: Ints) -> Tensor:
        return offers["x"][np.searchsorted(offers.authors, j)].double()

    def reward(mean_kad: Tensor, p: Ints) -> Floats:
        losses_ka = losses(mean_kad.flatten(0, 1), np.tile(p, 2)).reshape(2, -1)
        return -np.nan_to_num(losses_ka, nan=WORST, posinf=WORST)

    rows = np.arange(len(peers))
    lengths_p, order_pc, coin_pc = _padded(drawn)
    tried_p = np.where(max_peers > 1, lengths_p, 0)

    mean_kpd = model(np.tile(peers, (2, 1)))
    weight_kp = np.tile(samples_n[peers], (2, 1))
    for c in range(order_pc.shape[1]):
        p = rows[c < tried_p]
        x_ad, w_a = model(order_pc[p, c]), samples_n[order_pc[p, c]]
        mean_kpd[1, p] = _blended(mean_kpd[1, p], weight_kp[1, p], x_ad, w_a)
        weight_kp[1, p] += w_a

    chosen_pn = np.zeros((len(peers), len(samples_n)), dtype=np.bool_)
    chosen_pn[rows, peers] = True
    reward_kp = np.zeros((2, len(peers)))
    passes_p = np.zeros(len(peers), dtype=np.int64)
    for c in range(order_pc.shape[1]):
        p = rows[(c < tried_p) & (chosen_pn.sum(axis=1) < max_peers)]
        if not len(p):
            break
        if c == 0:
            reward_kp[:, p] = reward(mean_kpd[:, p], p)
            passes_p[p] += 2
        j = order_pc[p, c]
        w_ka = np.stack([samples_n[j], -samples_n[j]])  # X with j, Y without
        after_kad = _blended(mean_kpd[:, p], weight_kp[:, p], model(j), w_ka)
        reward_ka = reward(after_kad, p)
        passes_p[p] += 2
        a, b = np.maximum(reward_ka - reward_kp[:, p], 0.0)
        probability = np.divide(a, a + b, out=np.ones_like(a), where=a + b > 0)
        add = coin_pc[p, c] < probability
        if strict:
            add &= reward_ka[0] >= reward_kp[0, p]
        chosen_pn[p, j] = add
        k, at = np.where(add, 0, 1), np.arange(len(p))
        mean_kpd[k, p] = after_kad[k, at]
        weight_kp[k, p] += w_ka[k, at]
        reward_kp[k, p] = reward_ka[k, at]
    return Choice(chosen_pn, passes_p)


def _padded(drawn: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Ints, Floats]:
    """Return the numbers of candidates (P,), and candidates and draws (P, C), padded with 0."""
    lengths_p = np.array([len(order) for order, _ in drawn], dtype=np.int64)
    order_pc = np.zeros((len(drawn), lengths_p.max(initial=0)), dtype=np.int64)
    coin_pc = np.zeros(order_pc.shape)
    for row, (order, coins) in enumerate(drawn):
        order_pc[row, : len(order)], coin_pc[row, : len(order)] = order, coins
    return lengths_p, order_pc, coin_pc


def _blended(mean: Tensor, weight: Floats, x: Tensor, w: Floats) -> Tensor:
    """Update a weighted mean by models x of weights w; w < 0 removes them."""
    share = mean.new_tensor(w / (weight + w))
    return mean + share[..., None] * (x - mean)
