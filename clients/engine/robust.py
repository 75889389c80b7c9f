"""Robust aggregation: what takes the place of a weighted mean where some of the letters may lie.

All rules are of Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe
for optimal Byzantine ML under heterogeneity" (AISTATS 2023), but "clip": Karimireddy, He, Jaggi,
"Learning from history for Byzantine robust optimization" (ICML 2021), around the own model as in
He, Karimireddy, Jaggi, "Byzantine-robust decentralized learning via ClippedGossip" (2022). Here
letters have weights; with equal ones the rules are the papers'. f is the number of letters among k
that may be lies, floor(tolerate k). Letters that are not finite are left out first.

Most rules are weighted means whose weights follow from the distances between letters; only those of
each coordinate look at the numbers. Sums are those of `coterie.clients.engine.sums`, in float64 and
the order of the letters, so results do not depend on who is hosted where. Legend: k = letters of
one recipient, p = recipients, s = rows of a stack, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clients.defence import Defence
from coterie.clients.engine import sums, tuning
from coterie.clients.letters import Ints, Part

Floats = npt.NDArray[np.float64]
_ITERATIONS = 2000
_STILL = 1e-12  # of the weights of the geometric median: they move no more


class Models(Protocol):
    """Models (P, d) of which a part is made when it is asked for."""

    def __getitem__(self, at: Part, /) -> Tensor: ...


class Heard(NamedTuple):
    """What one recipient averages.

    Attributes
    ----------
    rows : (K,) of the stack. weights : (K,) of each; they need not sum to 1. own : (d,) where the
    recipient itself stands, if that is known.
    """

    rows: Ints
    weights: Floats
    own: Tensor | None


def mixed(defence: Defence, weights_ps: Floats, x_sd: Tensor, own_pd: Models | None) -> Tensor:
    """`aggregated` of rows of weights (P, S); of those other than 0.

    Parameters
    ----------
    own_pd : where the recipients stand themselves, if that is known.
    """
    heard = []
    for p, w_s in enumerate(weights_ps):
        rows = np.flatnonzero(w_s)
        heard.append(Heard(rows, w_s[rows], None if own_pd is None else own_pd[p : p + 1][0]))
    return aggregated(defence, x_sd, heard)


def collected(
    defence: Defence, weights_e: Floats, x_sd: Tensor, from_e: Ints, to_e: Ints, recipients: Ints
) -> Tensor:
    """`aggregated` of letters, each of a row of the stack to a recipient."""
    mine = (to_e == p for p in recipients)
    return aggregated(defence, x_sd, (Heard(from_e[e], weights_e[e], None) for e in mine))


def aggregated(defence: Defence, x_sd: Tensor, heard: Iterable[Heard]) -> Tensor:
    """What each recipient gets in the place of its weighted sum (P, d)."""
    found, known = [], dict[tuple[bytes, bytes], Tensor]()
    finite_s = torch.linalg.vector_norm(x_sd, torch.inf, dim=1).isfinite().cpu().numpy()
    for rows, weights, own in heard:
        used = (weights != 0) & finite_s[rows]
        centre = own if defence.rule == "clip" else None
        key = rows[used].tobytes(), weights[used].tobytes()
        if centre is not None or key not in known:
            known[key] = _of_one(defence, x_sd, rows[used], weights[used], centre)
        found.append(known[key] * float(weights.sum()))
    return torch.stack(found).to(x_sd)


def _of_one(
    defence: Defence, x_sd: Tensor, rows: Ints, weights: Floats, own: Tensor | None
) -> Tensor:
    """The aggregate (d,), in float64, of letters with positive weights."""
    if not len(rows):
        return x_sd.new_zeros(x_sd.shape[1], dtype=torch.float64)
    x_kd, w_k = x_sd[rows].double(), weights / weights.sum()
    f = int(defence.tolerate * len(rows) + 1e-9)
    if defence.nnm:
        x_kd = sums.mixed(nearest(_squares(x_kd), f), x_kd)
    if defence.rule in COORDINATES:
        return _by_coordinate(COORDINATES[defence.rule], x_kd, w_k, f)
    if defence.rule == "clip":
        centre_d = _by_coordinate(_median, x_kd, w_k, f) if own is None else own.double()
        away_kd = x_kd - centre_d
        distance_k = sums.paired(away_kd, away_kd).sqrt().cpu().numpy()
        a_k = w_k * _shortened(distance_k, len(rows) - f)
        return centre_d + sums.mixed(a_k[None], away_kd)[0]
    return sums.mixed(DISTANCES[defence.rule](_squares(x_kd), w_k, f)[None], x_kd)[0]


def _squares(x_kd: Tensor) -> Floats:
    """(K, K) squared distances, without the cancellation of inner products."""
    rows = [sums.paired(away_kd, away_kd) for away_kd in (x_kd - x_d for x_d in x_kd)]
    found: Floats = torch.stack(rows).cpu().numpy()
    return found


def nearest(squares_kk: Floats, f: int) -> Floats:
    """(K, K) weights of nearest-neighbour mixing: row i is the mean of the k - f nearest to i."""
    k = len(squares_kk)
    order_kk = np.argsort(squares_kk, axis=1, kind="stable")[:, : k - f]
    mixed_kk = np.zeros((k, k))
    np.put_along_axis(mixed_kk, order_kk, 1 / (k - f), axis=1)
    return mixed_kk


def _shortened(distance_k: Floats, kept: int) -> Floats:
    """Factor on the way to each letter: none is longer than the `kept`-th shortest."""
    radius = np.sort(distance_k)[kept - 1]
    factor_k: Floats = np.minimum(1.0, radius / np.where(distance_k > 0, distance_k, 1.0))
    return factor_k


def _scores(squares_kk: Floats, f: int) -> Floats:
    """How far each letter is from the k - f nearest, itself included."""
    scores: Floats = np.sort(squares_kk, axis=1)[:, : len(squares_kk) - f].sum(axis=1)
    return scores


def _krum(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    a_k: Floats = np.eye(len(w_k))[_scores(squares_kk, f).argmin()]
    return a_k


def _multi_krum(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    a_k = np.zeros_like(w_k)
    best = np.argsort(_scores(squares_kk, f), kind="stable")[: len(w_k) - f]
    a_k[best] = w_k[best] / w_k[best].sum()
    return a_k


def _geometric_median(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    """By Weiszfeld's iteration, in the weights a of v = sum_k a_k x_k.

    |x_j - v|^2 = sum_k a_k D_jk - 1/2 sum_kl a_k a_l D_kl for squared distances D. It begins at the
    letter with the least summed distance; a letter that is the median itself stays it (Vardi and
    Zhang, PNAS 2000).
    """
    distance_kk = np.sqrt(squares_kk)
    first = int((distance_kk @ w_k).argmin())
    alone_k: Floats = np.eye(len(w_k))[first]
    others = squares_kk[first] > 0
    u_k = np.where(others, w_k / np.where(others, distance_kk[first], 1.0), 0.0)
    if u_k.sum() == 0:
        return alone_k
    a_k: Floats = u_k / u_k.sum()
    pull = u_k.sum() * np.sqrt(max(_away(squares_kk, a_k)[first], 0.0))
    if pull <= w_k[~others].sum():
        return alone_k
    for _ in range(_ITERATIONS):
        far_k = np.sqrt(np.maximum(_away(squares_kk, a_k), 1e-24 * squares_kk.max()))
        next_k = w_k / far_k / (w_k / far_k).sum()
        moved, a_k = np.abs(next_k - a_k).max(), next_k
        if moved < _STILL:
            break
    return a_k


def _away(squares_kk: Floats, a_k: Floats) -> Floats:
    """Squared distances of the letters from their mean with weights a."""
    along_k = squares_kk @ a_k
    away_k: Floats = along_k - a_k @ along_k / 2
    return away_k


def _by_coordinate(
    rule: Callable[[Tensor, Tensor, float], Tensor], x_kd: Tensor, w_k: Floats, f: int
) -> Tensor:
    """A rule for sorted numbers (K, d), each with its weight, applied to each coordinate."""
    w = torch.from_numpy(w_k).to(x_kd)
    parts = []
    for part_kd in x_kd.split(tuning.SORTED_COLUMNS, dim=1):
        values_kd, order_kd = part_kd.sort(dim=0, stable=True)
        parts.append(rule(values_kd, w[order_kd], f / len(w_k)))
    return torch.cat(parts)


def _median(values_kd: Tensor, w_kd: Tensor, _: float) -> Tensor:
    """Where half of the weight is reached; halfway to the next one where it is met exactly."""
    reached_kd = w_kd.cumsum(dim=0)
    last = len(values_kd) - 1
    low_d = (reached_kd < 0.5 - 1e-9).sum(dim=0).clamp(max=last)
    high_d = (reached_kd < 0.5 + 1e-9).sum(dim=0).clamp(max=last)
    low, high = values_kd.gather(0, low_d[None])[0], values_kd.gather(0, high_d[None])[0]
    return low + (high - low) / 2


def _trimmed_mean(values_kd: Tensor, w_kd: Tensor, share: float) -> Tensor:
    """The mean without `share` of the weight at either end."""
    reached_kd = w_kd.cumsum(dim=0)
    kept_kd = (reached_kd.clamp(max=1 - share) - (reached_kd - w_kd).clamp(min=share)).clamp(min=0)
    return (values_kd * kept_kd).sum(dim=0) / kept_kd.sum(dim=0)


COORDINATES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "median": _median,
    "trimmed-mean": _trimmed_mean,
}
DISTANCES: dict[str, Callable[[Floats, Floats, int], Floats]] = {
    "krum": _krum,
    "multi-krum": _multi_krum,
    "geometric-median": _geometric_median,
}
