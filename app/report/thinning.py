"""Reduce the data of many peers for a page: block means and strongest links.

Shapes: n peers, B blocks, K links.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.app.runs.rundir import Floats, Ints


def thin(count: int, limit: int) -> Ints:
    """Select at most `limit` (at least two) of `count` indices, evenly, including both ends."""
    limit = min(count, max(2, limit))
    return np.unique(np.linspace(0, count - 1, limit).round().astype(np.int64))


def finite(weights: Floats) -> Floats:
    """Return a copy in which 0 replaces non-finite values."""
    return np.nan_to_num(weights, posinf=0.0, neginf=0.0)


def block_starts(group_n: Ints, limit: int) -> Ints:
    """Return the first peers (B,) of at most `limit` similar blocks of peers in display order."""
    # A block has peers of one group only (of `group_n`, whose peers are adjacent), unless the
    # number of groups exceeds half of `limit`.
    n = len(group_n)
    if n <= limit:
        return np.arange(n)
    border = np.flatnonzero(np.diff(group_n)) + 1
    if 2 * (len(border) + 1) > limit:
        border = np.empty(0, dtype=np.int64)
    spans = np.split(np.arange(n), border)
    shares = [max(1, len(span) * limit // n) for span in spans]
    while sum(shares) > limit:  # small groups were rounded up to one block
        shares[int(np.argmax(shares))] -= 1
    blocks = [b for span, k in zip(spans, shares, strict=True) for b in np.array_split(span, k)]
    return np.array([block[0] for block in blocks])


def block_means(weights_nn: Floats, order_n: Ints, start_b: Ints) -> Floats:
    """Return the mean weight, (B, B), that peers of one block give to those of another."""
    ordered_nn = weights_nn[np.ix_(order_n, order_n)]
    own_n = np.diagonal(ordered_nn).copy()
    np.fill_diagonal(ordered_nn, 0.0)
    sum_bb = np.add.reduceat(np.add.reduceat(ordered_nn, start_b, axis=0), start_b, axis=1)
    size_b = np.diff(start_b, append=len(order_n))
    pairs_bb = np.outer(size_b, size_b) - np.diag(size_b)
    mean_bb = sum_bb / np.maximum(pairs_bb, 1)
    alone_b = size_b == 1
    mean_bb[alone_b, alone_b] = own_n[start_b[alone_b]]
    return np.asarray(mean_bb)


def block_rows(values_nc: Floats, order_n: Ints, start_b: Ints) -> Floats:
    """Return the mean of the rows of a table (n, c) over the peers of each block, (B, c)."""
    size_b = np.diff(start_b, append=len(order_n))
    return np.asarray(np.add.reduceat(values_nc[order_n], start_b, axis=0) / size_b[:, None])


def strongest_links(weights_nn: Floats, limit: int) -> tuple[Ints, Floats]:
    """Return the peers to which each gives the largest weights, and these; at most (n, limit)."""
    # Ties are broken at random with a fixed seed, so that peers with uniform weights do not all
    # select the same peers.
    n = len(weights_nn)
    limit = min(limit, n - 1)
    noise_nn = np.random.default_rng(0).random((n, n))
    key_nn = weights_nn + 1e-9 * np.abs(weights_nn).max() * noise_nn
    np.fill_diagonal(key_nn, -np.inf)
    to_nk = np.argpartition(key_nn, n - limit, axis=1)[:, n - limit :]
    by_key = np.argsort(-np.take_along_axis(key_nn, to_nk, axis=1), axis=1)
    to_nk = np.take_along_axis(to_nk, by_key, axis=1)
    return to_nk, np.take_along_axis(weights_nn, to_nk, axis=1)


def encode(values: npt.NDArray[Any], nbytes: int) -> str:
    """Encode numbers in base64 as the upper `nbytes` of little-endian float32, rounded."""
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, dtype="<f4")
    half = np.where(np.isfinite(floats), 1 << (31 - 8 * nbytes), 0).astype("<u4")
    kept = (floats.view("<u4") + half).view(np.uint8).reshape(-1, 4)[:, 4 - nbytes :]
    return base64.b64encode(kept.tobytes()).decode("ascii")
