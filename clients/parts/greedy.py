"""Greedy choice of collaborators, for many peers at once (DPFL's algorithms 2 and 3).

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

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coterie.clients.hints import Bools, Floats, Ints, Tensor
from coterie.clients.letters import Letters

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
