"""Federated clustering: a robust mean of all peers' gradients at a peer's own model.

Werner, He, Jordan, Jaggi, Karimireddy, "Provably Personalized and Robust Federated Learning", TMLR
2023: Federated-Clustering with Threshold-Clustering. Symbols: x_i `state.x`, z_j = g_j(x_i) the
answers and the peer's own gradient, N their number, v the centre, tau the radius. In a round each
peer asks all others for a gradient at x_i, starts from v = g_i(x_i), repeats `iterations` times

    v <- 1/N sum_j (z_j where |z_j - v| <= tau, else v),

and steps x_i <- x_i - eta v. Then v = sum_j a_j z_j, and the a_j are the collaboration weights.

The radius is that of CoBo's authors, who ran this method as their baseline FC: the 0.2 quantile of
the |z_j - v|, with linear interpolation, in each of 10 iterations. A quantile q keeps
1 + floor(q (N - 1)) points, in their experiment, 8 peers in pairs, two: their "true number and size
of clusters". 0.2 with N < 6 keeps only the peer's own gradient, which is local training; 1 is the
plain mean.

Readings and deviations: the iterations use only the inner products of the z_j. Distances that
differ only by rounding lie on the same side of the radius. Peers that do not answer are left out.
With several `local-steps`, v is fixed for the round and corrected by the change of the peer's own
gradient (`coterie.clients.parts.helper_gradients`): a step descends v + g_i(x) - g_i(x0).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.parts.helper_gradients import corrected, gradients_at, mean_over_steps
from coterie.clients.rule import Rule, Weighted
from coterie.ranges import option
from coterie.strategies.plans import WantedHelp


class FederatedClustering(Rule[Weighted], strategy=WantedHelp, group="unknown", learns_graph=True):
    """A mean of gradients, clipped around the peer's own."""

    quantile: float = option(
        0.2, "Quantile of the distances that is the radius, in [0, 1].",
        low=0, high=1, grid=(0.2, 0.35, 0.5),
    )  # fmt: skip
    iterations: int = option(10, "Iterations of the clipped mean.", low=1)

    def wants(self, s: Weighted, t: int) -> Bools:
        return self.eye() < 1

    def answer(self, s: Weighted, asked: Inbox) -> Mapping[str, Tensor]:
        return {"g": gradients_at(self.engine, s, asked)}

    def update(self, s: Weighted, inbox: Inbox) -> Weighted:
        batches = self.engine.batches(inbox.round)
        at_start = [self.engine.gradients(s.x, s.buffers, batch) for batch in batches]
        g_pd = mean_over_steps([gradients.values for gradients in at_start], batches)
        w_pn = self._centre(g_pd, inbox)
        self_p1 = self.engine.tensor((w_pn * self.eye()).sum(axis=1, keepdims=True))
        centre_pd = inbox.answered("g", w_pn) + self_p1 * g_pd
        gradient = corrected(self.engine, s, at_start, centre_pd, 1.0)
        return self.fit(s, inbox.round, batches=batches, gradient=gradient, w=w_pn)

    def _centre(self, g_pd: Tensor, inbox: Inbox) -> Floats:
        """Return the weights (P, n) of all gradients in each peer's centre."""
        w_pn, answers = self.eye(), inbox.answers
        for p, i in enumerate(self.engine.peers):
            received = np.flatnonzero(answers.recipients == i)
            if not len(received):
                continue
            authors = np.append(answers.senders[received], i)
            z_jd = g_pd[p].expand(len(authors), -1).clone()
            z_jd[:-1] = answers["g"][answers.rows[received]]
            rank = self.quantile * len(received)
            gram = self.engine.products(z_jd, z_jd)
            w_pn[p, authors] = clipped_mean(gram, len(received), rank, self.iterations)
        return w_pn


def clipped_mean(gram: Floats, first: int, rank: float, iterations: int) -> Floats:
    """Return the weights a of points z_j in the threshold clustering centre v = sum_j a_j z_j.

    `gram` has the inner products of the points; v starts at the point `first`. `rank` is that, from
    0, of the distance from v that is the radius; interpolated between integers.
    """
    points = np.arange(len(gram))
    slack = 1e-7 * np.sqrt(gram.diagonal().max())  # rounding error of equal distances
    a: Floats = np.eye(len(gram))[first]
    for _ in range(iterations):
        squared = gram.diagonal() - 2 * gram @ a + a @ gram @ a
        distances = np.sqrt(np.maximum(squared, 0.0))
        near = distances <= np.interp(rank, points, np.sort(distances)) + slack
        a = near / len(gram) + (1 - near.mean()) * a
    return a
