"""Thinned data of many peers: blocks, block means, strongest links, encoded numbers."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.app.report.thinning import (
    block_means,
    block_rows,
    block_starts,
    encode,
    strongest_links,
    thin,
)
from tests.app.report.pages import decoded


def test_thinning_keeps_the_ends() -> None:
    assert thin(151, 4).tolist() == [0, 50, 100, 150]
    assert thin(3, 9).tolist() == [0, 1, 2]
    assert thin(9, 1).tolist() == [0, 8]
    assert thin(0, 5).tolist() == []


@pytest.mark.parametrize("sizes", [[100, 7, 50], [1] * 40 + [400] * 3, [1, 999]])
def test_blocks_are_few_and_inside_a_group(sizes: list[int]) -> None:
    group_n = np.repeat(np.arange(len(sizes)), sizes)
    start_b = block_starts(group_n, 100)
    assert len(start_b) <= 100
    assert start_b[0] == 0
    assert (np.diff(start_b) > 0).all()
    assert set(np.cumsum(sizes)[:-1]) <= set(start_b.tolist()), "each group begins a block"


def test_few_peers_are_blocks_of_one_and_many_groups_share_blocks() -> None:
    assert block_starts(np.zeros(5, dtype=np.int64), 5).tolist() == [0, 1, 2, 3, 4]
    start_b = block_starts(np.repeat(np.arange(300), 2), 100)
    assert np.unique(np.diff(start_b)).tolist() == [6]


def test_a_cell_is_the_mean_weight_between_different_peers() -> None:
    rng = np.random.default_rng(0)
    weights, order, start = rng.random((7, 7)), rng.permutation(7), np.array([0, 3, 4])
    blocks = [order[0:3], order[3:4], order[4:7]]
    means = block_means(weights, order, start)
    for a, rows in enumerate(blocks):
        for b, columns in enumerate(blocks):
            pairs = [weights[i, j] for i in rows for j in columns if i != j]
            diagonal = weights[rows[0], rows[0]]
            assert means[a, b] == pytest.approx(np.mean(pairs) if pairs else diagonal)
    table = rng.random((7, 2))
    expected = [table[rows].mean(axis=0) for rows in blocks]
    np.testing.assert_allclose(block_rows(table, order, start), expected)


def test_the_strongest_links_come_first_and_lead_to_others() -> None:
    weights = np.random.default_rng(0).random((20, 20)) + 5 * np.eye(20)
    to, strength = strongest_links(weights, 4)
    others = np.where(np.eye(20, dtype=np.bool_), -1, weights)
    np.testing.assert_array_equal(to, np.argsort(-others, axis=1)[:, :4])
    np.testing.assert_array_equal(strength, -np.sort(-others, axis=1)[:, :4])
    assert strongest_links(np.ones((3, 3)), 4)[0].shape == (3, 2)


def test_peers_who_give_everybody_the_same_have_no_common_favourites() -> None:
    to, _ = strongest_links(np.full((200, 200), 1 / 200), 3)
    assert np.bincount(to.ravel()).max() < 15, "about 3 each"


@pytest.mark.parametrize(("nbytes", "precision"), [(2, 2**-8), (3, 2**-16)])
def test_numbers_of_any_size_keep_their_leading_digits(nbytes: int, precision: float) -> None:
    values = np.array([0.0, 1.0, -2.5, 1e-6, 0.1, 3e11, 65_535.0, np.nan, np.inf])
    np.testing.assert_allclose(decoded(encode(values, nbytes), nbytes, 9), values, rtol=precision)


def test_peer_numbers_survive_three_bytes() -> None:
    numbers = np.arange(65_536)
    np.testing.assert_array_equal(decoded(encode(numbers, 3), 3), numbers)


def test_what_float32_cannot_hold_is_infinite() -> None:
    assert decoded(encode(np.array([1e300]), 3), 3).tolist() == [np.inf]
