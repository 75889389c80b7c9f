"""Weighted sums and inner products of stacked models, independent of the peers' nodes.

The summation order of a matrix product depends on its shape, on the alignment of its operands and
on the processor, hence on the other peers of the node. Here the terms of a sum are added in order,
or by elementwise operations whose order depends only on their number, in float64.
Legend: e = terms or models, s = rows of a stack, k = distinct sums, p = sums, d = parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.clients.engine import tuning
from coterie.clients.letters import Floats, Ints, Rows


@torch.no_grad()
def mixed(weights_ps: Floats, x_sd: Tensor) -> Tensor:
    """Return weighted sums (P, d) of a stack; equal rows of weights are computed once."""
    distinct: dict[bytes, int] = {}
    which = [distinct.setdefault(row.tobytes(), len(distinct)) for row in weights_ps]
    sum_p = np.array(which, dtype=np.int64)
    weights_ks = weights_ps[np.unique(sum_p, return_index=True)[1]]
    to_e, from_e = np.nonzero(weights_ks)
    return weighted(weights_ks[to_e, from_e], x_sd, from_e, to_e, sum_p)


@torch.no_grad()
def weighted(weights_e: Floats, x_sd: Tensor, from_e: Ints, to_e: Ints, sum_p: Ints) -> Tensor:
    """Return sums (P, d) of weighted rows, each in the order of its terms."""
    # `from_e` and `to_e` are row and sum of each term, `sum_p` the sum in each row of the result.
    if not len(to_e):
        return x_sd.new_zeros(len(sum_p), x_sd.shape[1])
    result_pd = x_sd.new_empty(len(sum_p), x_sd.shape[1])
    by_sum = np.argsort(to_e, kind="stable")
    first_k = np.searchsorted(to_e[by_sum], np.arange(sum_p.max() + 1))
    weights, rows, first, which = (
        torch.from_numpy(values).to(x_sd.device)
        for values in (weights_e[by_sum], from_e[by_sum], first_k, sum_p)
    )
    columns = max(
        tuning.SUM_COLUMNS.on(x_sd.device), tuning.SUM_CELLS.on(x_sd.device) // (2 * len(x_sd))
    )
    for result, x in zip(result_pd.split(columns, 1), x_sd.split(columns, 1), strict=True):
        # Unlike a matrix product, embedding_bag adds term by term.
        sums = F.embedding_bag(rows, x.double(), first, mode="sum", per_sample_weights=weights)
        result.copy_(sums.to(x.dtype).index_select(0, which))
    return result_pd


@torch.no_grad()
def products(a_ed: Tensor, b_sd: Tensor) -> Tensor:
    """Return inner products of all pairs of rows of two stacks, (E, S) float64."""
    result_es = a_ed.new_zeros(len(a_ed), len(b_sd), dtype=torch.float64)
    width = tuning.PRODUCT_TERMS.on(a_ed.device)
    rows = math.isqrt(tuning.SUM_CELLS.on(a_ed.device) // width)
    for i in range(0, len(a_ed), rows):
        for k in range(i if b_sd is a_ed else 0, len(b_sd), rows):
            a, b = a_ed[i : i + rows, None], b_sd[k : k + rows]
            tile = _total(zip(a.split(width, -1), b.split(width, -1), strict=True))
            result_es[i : i + rows, k : k + rows] = tile
            if b_sd is a_ed and i != k:
                result_es[k : k + rows, i : i + rows] = tile.T
    return result_es


@torch.no_grad()
def paired(a: Tensor | Rows, b: Tensor | Rows) -> Tensor:
    """Return inner products of rows with the same index, (E,) float64; each distinct pair once."""
    return _of_pairs(a, b, lambda x, y: (x, y))


@torch.no_grad()
def squared_distances(a: Rows, b: Rows) -> Tensor:
    """Return squared distances of rows with the same index, (E,) float64; each pair once."""
    return _of_pairs(a, b, lambda x, y: (x.sub_(y),) * 2)


def _of_pairs(
    a_ed: Tensor | Rows,
    b_ed: Tensor | Rows,
    factors: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """Return sums over columns of products of two factors of paired rows, symmetric in the pair."""
    a, b = (of if isinstance(of, Rows) else Rows(of, np.arange(len(of))) for of in (a_ed, b_ed))
    device, i_e, k_e = a.stack.device, a.rows, b.rows
    if a.stack is b.stack:
        i_e, k_e = np.minimum(i_e, k_e), np.maximum(i_e, k_e)
    _, first_k, which_e = np.unique(
        i_e * len(b.stack) + k_e, return_index=True, return_inverse=True
    )
    i_k, k_k, pair_e = (
        torch.from_numpy(of).to(device) for of in (i_e[first_k], k_e[first_k], which_e)
    )
    width = tuning.PAIRED_TERMS.on(device)
    rows = max(1, tuning.SUM_CELLS.on(device) // min(width, a.stack.shape[1]))
    blocks = [*zip(a.stack.split(width, 1), b.stack.split(width, 1), strict=True)]
    result_k = a.stack.new_zeros(len(i_k), dtype=torch.float64)
    for result, i, k in zip(result_k.split(rows), i_k.split(rows), k_k.split(rows), strict=True):
        both = (factors(x.index_select(0, i), y.index_select(0, k)) for x, y in blocks)
        result.copy_(_total(both))
    return result_k[pair_e]


def _total(blocks: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return sums of products over the last dimension of all blocks; the others are broadcast."""
    # The k-th of the partial sums takes the k-th term of each block. The second half of the partial
    # sums is added to the first until one is left.
    sums: Tensor | None = None
    for x, y in blocks:
        is_square, x = x is y, x.double()
        y = x if is_square else y.double()
        if sums is None:
            sums = x.mul_(x) if is_square else x * y  # a square is of a copy
        else:
            sums[..., : x.shape[-1]].addcmul_(x, y)
    assert sums is not None
    width = sums.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        sums[..., : width - half].add_(sums[..., half:width])
        width = half
    return sums[..., 0].clone()  # a view would keep all partial sums
