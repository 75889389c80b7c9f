"""Test weighted sums and inner products: exact, sparse, independent of the stacked peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.clients.engine import sums, tuning

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
D = 2 * tuning.PAIRED_TERMS.cpu + 2 * tuning.SUM_COLUMNS.cpu + 7
PEERS = 11


class Terms(TorchDispatchMode):
    """Counts the terms of weighted sums, over all columns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if "embedding_bag" in str(func):
            self.count += len(args[1]) * args[0].shape[1]
        return func(*args, **(kwargs or {}))


def stack(dtype: torch.dtype, rows: int = PEERS, columns: int = D, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, dtype=dtype, generator=torch.manual_seed(seed))


def scattered(x_sd: Tensor, rows: np.ndarray[Any, Any], shift: int) -> Tensor:
    """Some rows of a stack, `shift` numbers from where memory is aligned."""
    rows_sd = torch.empty(len(rows) * x_sd.shape[1] + shift, dtype=x_sd.dtype)[shift:]
    return rows_sd.view(len(rows), -1).copy_(x_sd[rows])


def rounded(exact: Any, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(exact, dtype=torch.float64).to(dtype)


@BOTH
def test_a_weighted_sum_is_its_terms_one_after_the_other(dtype: torch.dtype) -> None:
    x_sd, weights_ps = stack(dtype, 5, 2100), np.random.default_rng(0).normal(size=(3, 5))
    weights_ps[0, 2] = 0.0
    expected_pd = torch.zeros(3, 2100, dtype=torch.float64)
    for p, s in zip(*np.nonzero(weights_ps), strict=True):
        expected_pd[p] += weights_ps[p, s] * x_sd[s].double()
    sums_pd = sums.mixed(weights_ps, x_sd)
    assert sums_pd.dtype == dtype
    assert torch.allclose(
        sums_pd, expected_pd.to(dtype), rtol=1e-14 if dtype.itemsize == 8 else 1e-6
    )


@BOTH
def test_a_sum_does_not_depend_on_who_is_stacked_where(dtype: torch.dtype) -> None:
    """Sums do not depend on the stack's other rows or its place in memory."""
    g = np.random.default_rng(1)
    x_sd = stack(dtype)
    weights_pn = g.normal(size=(PEERS, PEERS)) * (g.random((PEERS, PEERS)) < 0.6)
    weights_pn[7] = weights_pn[2]
    together_pd = sums.mixed(weights_pn, x_sd)
    threads = torch.get_num_threads()
    for trial in range(12):
        hosted = np.sort(g.choice(PEERS, 1 + trial % PEERS, replace=False))
        used = (weights_pn[hosted] != 0).any(axis=0) | (g.random(PEERS) < 0.3)
        there = np.flatnonzero(used)
        torch.set_num_threads(1 + trial % 2)
        part_pd = sums.mixed(weights_pn[np.ix_(hosted, there)], scattered(x_sd, there, trial))
        assert torch.equal(part_pd, together_pd[hosted])
    torch.set_num_threads(threads)


@BOTH
def test_letters_are_added_like_weights(dtype: torch.dtype) -> None:
    """A list of terms, in any order of their sums, gives what the matrix of weights gives."""
    g = np.random.default_rng(2)
    x_sd, weights_ps = stack(dtype, 6, 3000), g.normal(size=(4, 6))
    to_e, from_e = np.nonzero(weights_ps)
    by_sender = np.argsort(from_e, kind="stable")
    sums_pd = sums.weighted(
        weights_ps[to_e, from_e][by_sender], x_sd, from_e[by_sender], to_e[by_sender], np.arange(4)
    )
    assert torch.equal(sums_pd, sums.mixed(weights_ps, x_sd))


def test_equal_rows_are_added_up_once_and_weights_of_zero_never() -> None:
    x_sd = stack(torch.float32, 20, 5000)
    average, ring = np.full((20, 20), 1 / 20), np.eye(20) + np.eye(20, k=1)
    for weights_ps, terms in ((average, 20), (ring, 39), (np.zeros((20, 20)), 0)):
        with Terms() as counted:
            sums.mixed(weights_ps, x_sd)
        assert counted.count == terms * 5000


def test_a_model_that_is_not_finite_harms_those_only_who_weigh_it() -> None:
    x_sd = stack(torch.float32, 3, 10)
    x_sd[1] = torch.nan
    part_pd = sums.mixed(np.array([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]), x_sd)
    assert torch.equal(part_pd[0], rounded(x_sd[0].double() / 2 + x_sd[2].double() / 2, x_sd.dtype))
    assert part_pd[1].isnan().all()


def test_nothing_to_add_is_zero() -> None:
    assert not sums.mixed(np.zeros((2, 0)), torch.zeros(0, 4)).any()
    none = np.zeros(0, dtype=np.int64)
    assert sums.mixed(np.zeros((0, 3)), torch.ones(3, 4)).shape == (0, 4)
    assert not sums.weighted(np.zeros(0), torch.zeros(0, 4), none, none, np.arange(3)).any()


@BOTH
def test_inner_products_do_not_depend_on_order_place_or_threads(dtype: torch.dtype) -> None:
    a_ed, b_sd = stack(dtype), stack(dtype, seed=3)
    products_es = sums.products(a_ed, b_sd)
    assert torch.allclose(products_es, a_ed.double() @ b_sd.double().T, rtol=1e-12, atol=1e-9)
    assert torch.equal(sums.products(b_sd, a_ed), products_es.T)
    g, threads = np.random.default_rng(3), torch.get_num_threads()
    for trial in range(12):
        rows, columns = (g.choice(PEERS, 1 + trial % 4, replace=False) for _ in range(2))
        torch.set_num_threads(1 + trial % 2)
        part = sums.products(scattered(a_ed, rows, trial), scattered(b_sd, columns, 2 * trial + 1))
        assert torch.equal(part, products_es[np.ix_(rows, columns)])
    torch.set_num_threads(threads)


def test_inner_products_of_more_pairs_than_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a_ed, b_sd = stack(torch.float32, 7, 600), stack(torch.float32, 5, 600, seed=3)
    expected = sums.products(a_ed, b_sd)
    cells = 4 * tuning.PRODUCT_TERMS.cpu
    monkeypatch.setattr(tuning, "SUM_CELLS", tuning.Threshold(cells, cells))
    assert torch.equal(sums.products(a_ed, b_sd), expected)


@BOTH
@pytest.mark.parametrize("d", [1, 2, 4810, D])
def test_a_pair_alone_and_among_others(dtype: torch.dtype, d: int) -> None:
    a_ed, b_ed = stack(dtype, 6, d), stack(dtype, 6, d, seed=3)
    products_e = sums.paired(a_ed, b_ed)
    assert torch.allclose(products_e, (a_ed.double() * b_ed.double()).sum(dim=1), rtol=1e-11)
    threads = torch.get_num_threads()
    for trial in range(12):
        rows = np.random.default_rng(trial).choice(6, 1 + trial % 6, replace=False)
        torch.set_num_threads(1 + trial % 2)
        part = sums.paired(scattered(b_ed, rows, trial), scattered(a_ed, rows, 2 * trial + 1))
        assert torch.equal(part, products_e[rows])
    torch.set_num_threads(threads)
