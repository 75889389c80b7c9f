"""Push-sum: invariants and limits of its weights, and graphs without any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.strategies.errors import TopologyError
from coterie.strategies.push_sum import Matrix, PushSum
from tests.topologies import changing, mixing, topology


def two_rounds(peers: int, seed: int) -> list[Matrix]:
    """Make two graphs of random edges, each with every second edge of a cycle."""
    g = np.random.default_rng(seed)
    graphs = [g.random((peers, peers)) < 0.3 for _ in range(2)]
    for i in range(peers):
        graphs[i % 2][i, (i + 1) % peers] = True
    for graph in graphs:
        np.fill_diagonal(graph, False)
    return graphs


@pytest.mark.slow
@settings(derandomize=True, deadline=None)
@given(st.integers(2, 9), st.integers(0, 99))
def test_the_weighted_sum_is_kept_and_all_approach_the_mean(peers: int, seed: int) -> None:
    graphs = two_rounds(peers, seed)
    push, start = PushSum.repeated(graphs), np.random.default_rng(seed).normal(size=peers)
    z = start
    for t in range(1, 120 * peers):
        weights, w = push(t)
        assert w.sum() == pytest.approx(peers)
        assert w @ z == pytest.approx(start.sum(), abs=1e-11)
        assert weights.sum(axis=1) == pytest.approx(np.ones(peers))
        assert ((weights > 0) == (graphs[(t - 1) % 2].T | np.eye(peers, dtype=np.bool_))).all()
        z = weights @ z
    assert z == pytest.approx(np.full(peers, start.mean()), abs=1e-9)


def test_it_is_the_plain_loop_of_kempe_and_others() -> None:
    """Sums and weights are divided among the recipients; their ratio is the estimate."""
    graphs, x = two_rounds(5, 3), np.arange(5.0)
    push, z, w = PushSum.repeated(graphs), np.arange(5.0), np.ones(5)
    for t in range(1, 20):
        parts, shares = np.zeros(5), np.zeros(5)
        for sender in range(5):
            hearing = [sender, *np.flatnonzero(graphs[(t - 1) % 2][sender])]
            for recipient in hearing:
                parts[recipient] += x[sender] / len(hearing)
                shares[recipient] += w[sender] / len(hearing)
        z = push(t)[0] @ z
        x, w = parts, shares
        assert z == pytest.approx(x / w, abs=1e-12)
        assert push(t + 1)[1] == pytest.approx(w, abs=1e-14)
    assert push(7)[1] == pytest.approx(
        PushSum.repeated(graphs)(7)[1], abs=0
    )  # in any order of calls


def test_where_all_hear_equally_many_it_is_the_plain_mean() -> None:
    weights, w = PushSum.repeated([topology("ring", 6, 0)])(9)
    assert weights == pytest.approx((topology("ring", 6, 0) + np.eye(6)) / 3)
    assert w == pytest.approx(np.ones(6))


def test_random_recipients_in_each_round_preserve_the_weighted_sum() -> None:
    """`topology = "push"`: every peer sends to 3 others, which differ in every round."""
    links = changing("push", 8, 5, degree=3, directed=True)
    push, z = mixing("push", 8, seed=5, degree=3), np.arange(8.0)
    assert links is not None
    assert push is not None
    for t in range(1, 60):
        assert (links(t).sum(axis=1) == 3).all()
        weights, w = push(t)
        assert ((weights > 0) == (links(t).T | np.eye(8, dtype=np.bool_))).all()
        assert w @ z == pytest.approx(28.0)
        z = weights @ z
    assert z == pytest.approx(np.full(8, 3.5), abs=1e-9)
    assert (links(1) != links(2)).any()
    assert len(set(push(2)[1].tolist())) > 1, "some peers receive more than others"


def test_edges_without_a_way_back_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "edges.csv"
    file.write_text("round,sender,recipient\n1,0,1\n1,1,0\n1,2,1\n", encoding="utf-8")
    with pytest.raises(TopologyError, match="peer 2 sends to peer 1, but no path leads back"):
        mixing("file", 3, degree=2, file=str(file))
    apart = "round,sender,recipient\n1,0,1\n2,1,0\n1,2,3\n1,3,4\n2,4,2\n"
    file.write_text(apart, encoding="utf-8")  # two components
    push = mixing("file", 5, degree=2, file=str(file))
    assert push is not None
    w = push(10)[1]
    assert (w[:2].sum(), w[2:].sum()) == pytest.approx((2, 3))


def test_edges_that_are_all_there_both_ways_need_none(tmp_path: Path) -> None:
    file = tmp_path / "edges.csv"
    file.write_text("round,sender,recipient\n1,0,1\n1,1,0\n1,2,1\n1,1,2\n", encoding="utf-8")
    assert mixing("file", 3, degree=2, file=str(file)) is None
    assert mixing("epidemic", 3, degree=2) is None
    assert mixing("full", 3, degree=2) is None
