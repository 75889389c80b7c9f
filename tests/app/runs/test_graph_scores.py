"""Graph scores on examples small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score

from coterie.app.runs.graph import (
    adjusted_rand_index,
    components,
    learnt_edges,
    row_scales,
    score,
)

TWO_PAIRS = np.array([0, 0, 1, 1])


def test_an_edge_is_more_than_half_of_the_largest_weight_given_to_another() -> None:
    w = np.array([[0.5, 0.3, 0.15, 0.05], [0, 1, 0, 0], [0.6, 0.4, 0.0, 0.0], [0, 0, 0, 0]])
    expected = np.zeros((4, 4), dtype=bool)
    expected[0, 1] = True  # 0.15 is not more than half of 0.3
    expected[2, [0, 1]] = True
    np.testing.assert_array_equal(learnt_edges(w), expected)
    np.testing.assert_array_equal(row_scales(w), [0.3, 1.0, 0.6, 0.06])  # the last: 0.6 / 10


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9])
def test_the_own_weight_hides_no_edge(weight: float) -> None:
    """The weight that a peer gives to itself does not change the learnt pairs."""
    pairs = np.kron(np.eye(2), 1 - np.eye(2))
    w = weight * np.eye(4) + (1 - weight) * pairs
    np.testing.assert_array_equal(learnt_edges(w), pairs > 0)
    result = score(w, TWO_PAIRS)
    assert (result.f1, result.exact) == (1, True)


def test_leftovers_of_a_peer_that_stands_alone_are_no_edges() -> None:
    w = np.array([[0.4, 0.6, 0.0], [0.7, 0.3, 0.0], [0.02, 0.029, 0.951]])
    assert not learnt_edges(w)[2].any(), "under 5 % of the largest weight"
    w[2] = [0.02, 0.036, 0.944]
    assert learnt_edges(w)[2].tolist() == [False, True, False]


def test_for_ties_with_one_on_the_diagonal_the_rule_is_more_than_a_half() -> None:
    rng = np.random.default_rng(0)
    w = rng.uniform(size=(9, 9))
    np.fill_diagonal(w, 1.0)
    np.testing.assert_array_equal(learnt_edges(w), (w > 0.5) & ~np.eye(9, dtype=bool))


def test_a_simplex_row_without_own_weight_ignores_the_diagonal_one() -> None:
    # cluster of three: each gives 1/2 to both mates, 1 on the diagonal by the file's convention
    w = np.array([[1, 0.5, 0.5, 0], [0.5, 1, 0.5, 0], [0.5, 0.5, 1, 0], [1 / 3, 1 / 3, 1 / 3, 1]])
    expected = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=bool)
    np.testing.assert_array_equal(learnt_edges(w), expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 7.0])
def test_edges_do_not_depend_on_the_scale_of_averaging_weights(scale: float) -> None:
    w = np.full((5, 5), 0.2)
    w[0] = [0.7, 0.3, 0, 0, 0]
    np.testing.assert_array_equal(learnt_edges(w), learnt_edges(scale * w))
    assert learnt_edges(w)[1:].sum() == 4 * 4, "equal shares: everybody listens to everybody"


def test_blocks_recover_the_clusters_exactly() -> None:
    w = np.kron(np.eye(2), np.ones((2, 2))).astype(np.float64)
    result = score(w, TWO_PAIRS)
    assert result.exact
    assert (result.precision, result.recall, result.f1) == (1, 1, 1)
    assert result.adjusted_rand_index == 1
    assert result.largest_weight_on_own_cluster == 1


def test_one_wrong_and_one_missing_edge_counted_by_hand() -> None:
    # learnt: 0->1, 1->0, 1->2 (wrong), 2->3; missing: 3->2. True: 4 edges.
    w = np.array([[1, 1, 0, 0], [0.8, 1, 0.9, 0], [0, 0, 1, 0.7], [0, 0, 0.4, 1]])
    result = score(w, TWO_PAIRS)
    assert result.precision == 3 / 4
    assert result.recall == 3 / 4
    assert result.f1 == 3 / 4
    assert not result.exact
    # mutual edges: only 0-1, so the components are {0, 1}, {2}, {3}: pairs together in both 1,
    # in the truth 2, in the components 1, of 6: (1 - 2/6) / (3/2 - 2/6) = 4/7
    np.testing.assert_array_equal(components(learnt_edges(w)), [0, 0, 1, 2])
    assert result.adjusted_rand_index == pytest.approx(4 / 7)
    # largest off-diagonal weight on a mate: 0 yes, 1 no (peer 2), 2 yes, 3 yes
    assert result.largest_weight_on_own_cluster == 3 / 4


def test_no_edges_at_all() -> None:
    result = score(np.eye(4), TWO_PAIRS)
    assert result.precision is None
    assert result.recall == 0
    assert result.f1 == 0
    assert result.largest_weight_on_own_cluster == 0
    assert result.adjusted_rand_index == 0


def test_a_uniform_row_has_no_favourite_in_its_own_cluster() -> None:
    result = score(np.ones((4, 4)), TWO_PAIRS)
    assert result.largest_weight_on_own_cluster == 0, "a tie with strangers is no recovery"
    assert (result.precision, result.recall) == (4 / 12, 1)
    assert result.adjusted_rand_index == 0


def test_peers_without_mates_are_recovered_by_being_alone() -> None:
    result = score(np.eye(3), np.array([0, 1, 2]))
    assert result.exact
    assert result.precision is None
    assert result.recall is None
    assert result.largest_weight_on_own_cluster is None


def test_one_peer() -> None:
    result = score(np.ones((1, 1)), np.array([0]))
    assert result.exact


def test_relabelling_peers_changes_no_score() -> None:
    rng = np.random.default_rng(3)
    w, clusters = rng.uniform(size=(7, 7)), rng.integers(0, 3, 7)
    order = rng.permutation(7)
    ours, theirs = score(w, clusters), score(w[np.ix_(order, order)], clusters[order])
    assert ours.precision == theirs.precision
    assert ours.adjusted_rand_index == pytest.approx(theirs.adjusted_rand_index)
    assert ours.adjusted_rand_index == pytest.approx(
        adjusted_rand_score(clusters, components(learnt_edges(w)))
    )


def test_the_rand_index_is_scikit_learns() -> None:
    g = np.random.default_rng(0)
    cases = [(np.zeros(4, dtype=int), np.zeros(4, dtype=int)), (np.arange(4), np.arange(4))]
    cases += [(np.zeros(4, dtype=int), np.arange(4)), (np.arange(1), np.arange(1))]
    cases += [(g.integers(k, size=30), g.integers(k, size=30)) for k in range(1, 9)]
    for one, other in cases:
        assert adjusted_rand_index(one, other) == adjusted_rand_score(one, other), (one, other)


def test_components_are_numbered_as_scipy_numbers_them() -> None:
    """Sparse and dense graphs, and a path through peers in random order."""
    g = np.random.default_rng(0)
    graphs = [g.random((n, n)) < density for n in (1, 7, 40) for density in (0.0, 0.05, 0.3, 1.0)]
    order = g.permutation(60)
    path = np.zeros((60, 60), dtype=bool)
    path[order[:-1], order[1:]] = path[order[1:], order[:-1]] = True
    for edges in (*graphs, *(graph | graph.T for graph in graphs), path):
        _, expected = connected_components(edges & edges.T, directed=False)
        np.testing.assert_array_equal(components(edges), expected)
