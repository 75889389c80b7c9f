"""Federated clustering: a robust mean of everybody's gradients at a peer's own model.

Werner, He, Jordan, Jaggi, Karimireddy, "Provably Personalized and Robust Federated Learning", TMLR
2023: Federated-Clustering with Threshold-Clustering. Symbols: x_i `state.x`, z_j = g_j(x_i) the
answers and the own gradient, N how many there are, v the centre, tau the radius. In a round each
peer asks all others for a gradient at x_i, starts from v = g_i(x_i), repeats `iterations` times

    v <- 1/N sum_j (z_j where |z_j - v| <= tau, else v),

and steps x_i <- x_i - eta v. Then v = sum_j a_j z_j, and the a_j are the collaboration weights.

The radius is that of CoBo's authors, who ran this method as their baseline FC: the 0.2 quantile of
the |z_j - v|, linear between two of them, in each of 10 iterations. "True number and size of
clusters" of their paper is `radius = "truth"`: the ball then holds as many as the true cluster. In
their experiment, 8 peers in pairs, both keep two points. In general a quantile q keeps
1 + floor(q (N - 1)) of them: 0.2 among fewer than 6 keeps the own gradient alone, which is local
training; 1 is the plain mean.

Readings and deviations: v needs no vector arithmetic, as distances follow from the inner products
of the z_j. Distances equal but for rounding lie on the same side. Those who do not answer are left
out. With more `local-steps`, v is fixed for the round and moves along as the own gradient does
(`coterie.clients.parts.helper_gradients`): a step descends v + g_i(x) - g_i(x0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from coterie.clients.letters import Ints, Letters
from coterie.clients.parts.helper_gradients import gradients_at, mean_over_steps, moving_along
from coterie.clients.rule import Clustered, Floats, Grid, Rule, State, true_clusters

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """Federated clustering's knobs.

    Attributes
    ----------
    radius : "quantile" of the distances, or as many points as the true cluster has ("truth", which
        only synthetic splits know).
    quantile : quantile of the distances that is the radius, in [0, 1].
    iterations : iterations of the clipped mean.
    """

    radius: Literal["quantile", "truth"] = "quantile"
    quantile: float = 0.2
    iterations: int = 10
    grid: ClassVar[Grid] = {"quantile": (0.2, 0.35, 0.5)}

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError("quantile must lie in [0, 1]")
        if self.iterations < 1:
            raise ValueError("iterations must be at least 1")

    def fits(self, problem: Clustered) -> None:
        """Refuse a truth that nobody knows."""
        if self.radius == "truth":
            true_clusters(problem, 'set radius = "quantile"')


@dataclass(frozen=True)
class FederatedClusteringState(State):
    """`w`: (P, n) weight of everybody's gradient in the last centre."""

    w: Floats


class FederatedClustering(Rule[FederatedClusteringState]):
    """Gradients far from the own one do not count."""

    def init(self) -> FederatedClusteringState:
        return FederatedClusteringState(**vars(self.start()), w=self.eye())

    def wants(self, state: FederatedClusteringState, round_: int) -> Ints:
        return self.pairs(self.eye() == 0, hearing=False)

    def answer(
        self, state: FederatedClusteringState, round_: int, asked: Letters
    ) -> tuple[FederatedClusteringState, Mapping[str, Tensor]]:
        return state, {"g": gradients_at(self.engine, state, round_, asked)}

    def update(
        self,
        state: FederatedClusteringState,
        round_: int,
        offers: Letters,
        sent: Letters,
        answers: Letters,
    ) -> FederatedClusteringState:
        batches = self.engine.batches(round_)
        own = [self.engine.gradients(state.x, state.buffers, batch) for batch in batches]
        own_pd = mean_over_steps([found.values for found in own], batches)
        w_pn = self._weights(own_pd, answers)
        self_p1 = self.engine.tensor((w_pn * self.eye()).sum(axis=1, keepdims=True))
        centre_pd = self.answered(answers, "g", w_pn) + self_p1 * own_pd
        gradient = moving_along(self.engine, state, own, centre_pd, 1.0)
        fit = self.engine.fit(state.x, state.buffers, state.opt_state, batches, gradient=gradient)
        return replace(state.trained(fit), w=w_pn)

    def weights(self, state: FederatedClusteringState) -> Floats:
        return state.w

    def _weights(self, own_pd: Tensor, answers: Letters) -> Floats:
        """(P, n) weights of everybody's gradient in each peer's centre."""
        w_pn = self.eye()
        for p, i in enumerate(self.engine.peers):
            mine = np.flatnonzero(answers.recipients == i)
            if not len(mine):
                continue
            who = np.append(answers.senders[mine], i)
            z_jd = own_pd[p].expand(len(who), -1).clone()
            z_jd[:-1] = answers["g"][answers.rows[mine]]
            rank = self.options.quantile * len(mine)
            if self.options.radius == "truth":
                rank = np.count_nonzero(self.same_cluster()[p, who]) - 1
            gram = self.engine.products(z_jd, z_jd)
            w_pn[p, who] = clipped_mean(gram, len(mine), rank, self.options.iterations)
        return w_pn


def clipped_mean(gram: Floats, first: int, rank: float, iterations: int) -> Floats:
    """Weights a of points z_j in the centre v = sum_j a_j z_j of threshold clustering.

    Parameters
    ----------
    gram : (N, N) inner products of the points.
    first : the point at which v begins.
    rank : of the point, by its distance from v and counted from 0, on whose distance the radius
        lies; between two ranks it is interpolated.
    """
    points = np.arange(len(gram))
    slack = 1e-7 * np.sqrt(gram.diagonal().max())  # what rounding leaves of equal points
    a: Floats = np.eye(len(gram))[first]
    for _ in range(iterations):
        squared = gram.diagonal() - 2 * gram @ a + a @ gram @ a
        distances = np.sqrt(np.maximum(squared, 0.0))
        near = distances <= np.interp(rank, points, np.sort(distances)) + slack
        a = near / len(gram) + (1 - near.mean()) * a
    return a
