"""DPFL: each peer averages with the peers whose models lower its validation loss.

Kharrat, Canini and Horvath, "Decentralized Personalized Federated Learning", algorithms 1 to 3.
Symbols: w_k `state.x`, Omega_k `state.omega`, C_k `state.chosen`, B_c `options.budget`, tau_init
`options.init_epochs`, tau_train the run's local-epochs or local-steps, P `options.period`, p_i the
number of training samples.

Round 1 is the preprocessing: tau_init epochs from a common start, Omega_k = BGGC(all senders),
w_k = average over Omega_k and k. In every later round a peer trains tau_train, pulls Omega_k, every
P rounds (from round 2 on) chooses C_k = GGC(Omega_k) among the received models, and averages over
C_k and k. All averages are over the pulled models. The greedy choice is
`coterie.clients.parts.greedy`.

Readings: a node holds each letter once, so round 1 pulls every model once where the paper's BGGC
pulls it twice; models that a round would not use (with `period` > 1, those outside C_k, or all of
them under "skip") are not pulled; momentum is kept across averages; a peer that joins late or
received nothing builds Omega_k in the first round in which it receives a model; batch-norm buffers
stay personal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.parts import greedy
from coterie.clients.parts.validation import Kept, better, buffers_of, with_validation_loss
from coterie.clients.rule import Floats, Grid, Rule, State
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor


MODELS = ("before_averaging", "best_before_averaging", "best_after_averaging")
"""Models of a peer that are evaluated besides the personal one."""


@dataclass(frozen=True)
class Budget:
    """Options of DPFL's graph.

    Attributes
    ----------
    budget : int
        Maximum number of peers in an average; 0 for no limit.
    budget_counts_self : bool
        The budget includes the peer itself, so that 5 means 4 others.
    init_epochs : int
        Local epochs before the graph is built.
    """

    budget: Annotated[int, Range(0)] = 0
    budget_counts_self: bool = True
    init_epochs: Annotated[int, Range(1)] = 10
    grid: ClassVar[Grid] = {"init-epochs": (2, 5, 10)}


@dataclass(frozen=True)
class Options(Budget):
    """Options of DPFL.

    Attributes
    ----------
    tie : {"add", "strict"}
        Rule for a candidate that neither helps when added nor when dropped: "add" it, as in the
        paper; "strict" adds any candidate only if the validation loss does not rise.
    period : int
        Rounds between two choices of C_k.
    refresh : {"reuse", "skip"}
        In the rounds between two choices: reuse the last C_k, or skip averaging.
    """

    tie: Literal["add", "strict"] = "add"
    period: Annotated[int, Range(1)] = 1
    refresh: Literal["reuse", "skip"] = "reuse"
    validates: ClassVar[bool] = True


@dataclass(frozen=True)
class DPFLState(State):
    """State of DPFL.

    Attributes
    ----------
    before : Kept
        Models before the last averaging.
    best_before, best_after : Kept
        Models with the smallest validation loss so far, before and after averaging.
    omega : ndarray of bool, (P, n)
        Omega_k and k; all peers until the graph is built.
    fresh : ndarray of bool, (P,)
        True until the graph is built.
    chosen : ndarray of bool, (P, n)
        C_k and k.
    shares : ndarray, (P, n)
        Weights of the last average.
    passes : ndarray of int, (P,)
        Passes over the validation data that the choices took so far.
    """

    before: Kept
    best_before: Kept
    best_after: Kept
    omega: Bools
    fresh: Bools
    chosen: Bools
    shares: Floats
    passes: Ints


class DPFL(Rule[DPFLState]):
    """DPFL: train, choose collaborators by validation loss, average with them."""

    reported: ClassVar[tuple[str, ...]] = (
        "validation_passes",
        "candidates",
        *(f"{model}_test_{kind}" for model in MODELS for kind in ("loss", "accuracy")),
    )

    def init(self) -> DPFLState:
        state, eye = self.start(), self.eye()
        kept = with_validation_loss(self.engine, state.x, state.buffers)
        return DPFLState(
            **vars(state),
            before=kept,
            best_before=kept,
            best_after=kept,
            omega=np.ones_like(eye, dtype=np.bool_),
            fresh=np.ones(len(eye), dtype=np.bool_),
            chosen=eye > 0,
            shares=eye,
            passes=np.zeros(len(eye), dtype=np.int64),
        )

    def wants(self, state: DPFLState, round_: int) -> Ints:
        return self.pairs(self._used(state, round_))

    def offer(self, state: DPFLState, round_: int) -> tuple[DPFLState, Mapping[str, Tensor]]:
        epochs = self.options.init_epochs if round_ == 1 else None
        batches = self.engine.batches(round_, epochs=epochs)
        state = state.trained(self.engine.fit(state.x, state.buffers, state.opt_state, batches))
        return state, {"x": state.x}

    def update(
        self, state: DPFLState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> DPFLState:
        senders_pn = offers.senders_to(self.engine.peers, self.engine.n)
        received_pn = senders_pn & self._used(state, round_)
        due_p = (state.fresh | self._refreshes(round_)) & received_pn.any(axis=1)
        choice = self.choose(state, round_, offers, received_pn & due_p[:, None])
        chosen_pn = np.where(due_p[:, None], choice.chosen_pn, state.chosen)
        built_p = state.fresh & due_p
        shares_pn = (chosen_pn & received_pn | (self.eye() > 0)) * self.engine.samples
        x_pd = self.average(offers, "x", shares_pn)
        shares_pn = self.discounted(shares_pn, offers)
        before = with_validation_loss(self.engine, state.x, state.buffers)
        after = with_validation_loss(self.engine, x_pd, state.buffers)
        return replace(
            state,
            x=x_pd,
            before=before,
            best_before=better(self.engine, state.best_before, before),
            best_after=better(self.engine, state.best_after, after),
            omega=np.where(built_p[:, None], chosen_pn, state.omega),
            fresh=state.fresh & ~due_p,
            chosen=chosen_pn,
            shares=shares_pn / shares_pn.sum(axis=1, keepdims=True),
            passes=state.passes + choice.passes_p,
        )

    def choose(
        self, state: DPFLState, round_: int, offers: Letters, candidates_pn: Bools
    ) -> greedy.Choice:
        """Choose the peers to average with, among the candidates (P, n) of each peer."""

        def losses(x_ed: Tensor, peers: Ints) -> Floats:
            buffers = state.buffers_at(peers)
            scores = self.engine.losses(x_ed.to(state.x), buffers, "validation", peers)
            losses_e: Floats = scores.losses.cpu().numpy()
            return losses_e

        drawn = []
        for p, peer in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(peer), round_, Purpose.CHOICE)
            order = g.permutation(np.flatnonzero(candidates_pn[p]))
            drawn.append((order, g.random(len(order))))
        return greedy.choose(
            losses, self.engine.peers, offers, drawn, self.engine.samples,
            max_peers=self.max_peers, strict=self.options.tie == "strict",
        )  # fmt: skip

    def weights(self, state: DPFLState) -> Floats:
        return state.shares

    def metrics(self, state: DPFLState) -> Mapping[str, Floats]:
        """Return test scores of `MODELS`, validation passes, and the number of candidates."""
        metrics = {
            "validation_passes": state.passes.astype(np.float64),
            "candidates": state.omega.sum(axis=1) - 1.0,
        }
        models = (state.before, state.best_before, state.best_after)
        for name, kept in zip(MODELS, models, strict=True):
            scores = self.engine.losses(kept["x"], buffers_of(kept), "test")
            known = kept["loss"].isfinite()
            metrics[f"{name}_test_loss"] = scores.losses.where(known, np.nan).cpu().numpy()
            metrics[f"{name}_test_accuracy"] = scores.accuracies.where(known, np.nan).cpu().numpy()
        return metrics

    @property
    def max_peers(self) -> int:
        """Maximum number of peers in an average, the peer itself included."""
        budget, n = self.options.budget, self.engine.n
        return budget + (not self.options.budget_counts_self) if budget else n

    def _refreshes(self, round_: int) -> bool:
        return bool((round_ - 2) % self.options.period == 0)

    def _used(self, state: DPFLState, round_: int) -> Bools:
        """Return a mask (P, n) of the models that each peer uses in `round_`."""
        later = state.chosen if self.options.refresh == "reuse" else self.eye() > 0
        used: Bools = state.omega if self._refreshes(round_) else later
        return np.where(state.fresh[:, None], state.omega, used)
