"""Robust aggregation: replace the weighted mean if some letters may be malicious.

All rules are of Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe
for optimal Byzantine ML under heterogeneity" (AISTATS 2023), except "clip": Karimireddy, He, Jaggi,
"Learning from history for Byzantine robust optimization" (ICML 2021), around the recipient's model
as in He, Karimireddy, Jaggi, "Byzantine-robust decentralized learning via ClippedGossip" (2022).
Here letters have weights; with equal weights the rules are those of the papers. f =
floor(tolerate k) of k letters may be malicious. Non-finite letters are dropped first.

Most rules are weighted means whose weights follow from the distances between letters; only the
coordinate-wise rules use the values. Sums are those of `coterie.clients.engine.sums`, in float64
and the order of the letters, so results do not depend on the assignment of peers to nodes. Legend:
k = letters of one recipient, p = recipients, s = rows of a stack, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clients.defence import Defence, median
from coterie.clients.engine import sums, tuning
from coterie.clients.engine.training import Models
from coterie.clients.letters import Floats, Ints, Rows


class Received(NamedTuple):
    """Letters of one recipient, with their weights."""

    rows: Ints  # rows of the letters in the stack, (K,)
    weights: Floats  # (K,); weight of each letter; the weights need not sum to 1
    own: Tensor | None  # model of the recipient, if known, (d,)


def mixed(defence: Defence, weights_ps: Floats, x_sd: Tensor, own_pd: Models | None) -> Tensor:
    """Aggregate the rows of a stack with nonzero weights (P, S); `own_pd` are the recipients'."""
    received = []
    for p, w_s in enumerate(weights_ps):
        rows = np.flatnonzero(w_s)
        received.append(Received(rows, w_s[rows], None if own_pd is None else own_pd[p : p + 1][0]))
    return aggregated(defence, x_sd, received)


def collected(
    defence: Defence, weights_e: Floats, x_sd: Tensor, from_e: Ints, to_e: Ints, recipients: Ints
) -> Tensor:
    """Aggregate letters, each from a row of the stack to a recipient."""
    mine = (to_e == p for p in recipients)
    return aggregated(defence, x_sd, (Received(from_e[e], weights_e[e], None) for e in mine))


def aggregated(defence: Defence, x_sd: Tensor, received: Iterable[Received]) -> Tensor:
    """Return the robust aggregates (P, d) that replace weighted sums."""
    result, known = [], dict[tuple[bytes, bytes], Tensor]()
    finite_s = torch.linalg.vector_norm(x_sd, torch.inf, dim=1).isfinite().cpu().numpy()
    for rows, weights, own in received:
        used = (weights != 0) & finite_s[rows]
        centre = own if defence.rule == "clip" else None
        key = rows[used].tobytes(), weights[used].tobytes()
        if centre is not None or key not in known:
            known[key] = _of_one(defence, x_sd, rows[used], weights[used], centre)
        result.append(known[key] * float(weights.sum()))
    return torch.stack(result).to(x_sd)


def _of_one(
    defence: Defence, x_sd: Tensor, rows: Ints, weights: Floats, own: Tensor | None
) -> Tensor:
    """Return the aggregate (d,), in float64, of letters with positive weights."""
    if not len(rows):
        return x_sd.new_zeros(x_sd.shape[1], dtype=torch.float64)
    x_kd, w_k = x_sd[rows].double(), weights / weights.sum()
    f = int(defence.tolerate * len(rows) + 1e-9)
    if defence.nnm:
        x_kd = sums.mixed(nearest(_squares(x_kd), f), x_kd)
    rule = defence.row
    if rule.coordinates is not None:
        return _by_coordinate(rule.coordinates, x_kd, w_k, f)
    if rule.weights is None:
        centre_d = _by_coordinate(median, x_kd, w_k, f) if own is None else own.double()
        away_kd = x_kd - centre_d
        distance_k = sums.paired(away_kd, away_kd).sqrt().cpu().numpy()
        radius = np.sort(distance_k)[len(rows) - f - 1]
        a_k = w_k * np.minimum(1.0, radius / np.where(distance_k > 0, distance_k, 1.0))
        return centre_d + sums.mixed(a_k[None], away_kd)[0]
    return sums.mixed(rule.weights(_squares(x_kd), w_k, f)[None], x_kd)[0]


def _squares(x_kd: Tensor) -> Floats:
    """Return squared distances (K, K), without the cancellation of inner products."""
    i_e, k_e = np.indices((len(x_kd), len(x_kd))).reshape(2, -1)
    squares_e: Floats = sums.squared_distances(Rows(x_kd, i_e), Rows(x_kd, k_e)).cpu().numpy()
    return squares_e.reshape(len(x_kd), -1)


def nearest(squares_kk: Floats, f: int) -> Floats:
    """Return the weights (K, K) of nearest-neighbour mixing: row i averages the k - f nearest."""
    k = len(squares_kk)
    order_kk = np.argsort(squares_kk, axis=1, kind="stable")[:, : k - f]
    mixed_kk = np.zeros((k, k))
    np.put_along_axis(mixed_kk, order_kk, 1 / (k - f), axis=1)
    return mixed_kk


def _by_coordinate(
    rule: Callable[[Tensor, Tensor, float], Tensor], x_kd: Tensor, w_k: Floats, f: int
) -> Tensor:
    """Apply a rule for sorted, weighted numbers to each coordinate of (K, d)."""
    w = torch.from_numpy(w_k).to(x_kd)
    parts = []
    for part_kd in x_kd.split(tuning.SORTED_COLUMNS, dim=1):
        values_kd, order_kd = part_kd.sort(dim=0, stable=True)
        parts.append(rule(values_kd, w[order_kd], f / len(w_k)))
    return torch.cat(parts)
