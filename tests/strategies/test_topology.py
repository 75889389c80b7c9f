from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.app.config.config import Config, ConfigError
from coterie.strategies.errors import TopologyError
from coterie.strategies.pairs import Pairs
from coterie.strategies.push_sum import Matrix
from coterie.strategies.topology import is_connected, listed, matrix_of
from tests.topologies import changing, topology

quick = settings(derandomize=True, deadline=None)


def is_simple(graph: Matrix) -> bool:
    return bool((graph == graph.T).all() and not graph.diagonal().any())


@quick
@given(st.integers(1, 12), st.integers(0, 5), st.sampled_from(["full", "ring"]))
def test_every_degree_of_full_and_ring(peers: int, seed: int, kind: str) -> None:
    graph = topology(kind, peers, seed)
    assert is_simple(graph)
    assert is_connected(graph)
    degree = peers - 1 if kind == "full" else min(2, peers - 1)
    assert (graph.sum(axis=0) == degree).all()


def test_ring_links_neighbours_in_order() -> None:
    assert listed(np.triu(topology("ring", 4, 0))).tolist() == [[0, 1], [1, 2], [0, 3], [2, 3]]


@quick
@given(st.integers(3, 20), st.integers(0, 50), st.data())
def test_k_regular_is_regular_and_connected(peers: int, seed: int, data: st.DataObject) -> None:
    degrees = [k for k in range(2, peers) if k * peers % 2 == 0]
    degree = data.draw(st.sampled_from(degrees))
    graph = topology("k-regular", peers, seed, degree=degree)
    assert is_simple(graph)
    assert is_connected(graph)
    assert (graph.sum(axis=0) == degree).all()
    assert (graph == topology("k-regular", peers, seed, degree=degree)).all()


@pytest.mark.slow
def test_k_regular_forgets_the_circle_it_starts_from() -> None:
    # In a uniform 4-regular graph of 30 peers, each pair is linked with probability 4/29.
    graphs = [topology("k-regular", 30, seed, degree=4) for seed in range(200)]
    share = np.mean([np.diagonal(graph, 1).mean() for graph in graphs])
    # 200 * 29 dependent draws; 0.02 is about 4 standard errors of independent ones.
    assert share == pytest.approx(4 / 29, abs=0.02)


@pytest.mark.parametrize(("peers", "degree"), [(5, 3), (4, 4), (4, 0), (1, 1)])
def test_k_regular_that_cannot_be(peers: int, degree: int) -> None:
    with pytest.raises(TopologyError, match="degree must be"):
        topology("k-regular", peers, 0, degree=degree)


def test_unconnected_k_regular_is_an_error() -> None:
    with pytest.raises(TopologyError, match="no connected 1-regular graph"):
        topology("k-regular", 6, 0, degree=1)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps([[0, 1], [2, 1]]))
    expected = [[False, True, False], [True, False, True], [False, True, False]]
    assert topology("file", 3, 0, file=str(path)).tolist() == expected


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[[0, 3]]", r"\[0, 3\] must be two different"),
        ("[[-1, 0]]", r"\[-1, 0\] must be two different"),
        ("[[1, 1]]", r"\[1, 1\] must be two different"),
        ("[[0, 1, 0], [1, 0, 1], [0, 1, 0]]", "argwhere"),
        ("[[0, true]]", "expected a list"),
        ("[[0, 1.5]]", "expected a list"),
        ('{"0": 1}', "expected a list"),
        ("[0, 1]", "expected a list"),
        ("[[0,", "not JSON"),
    ],
)
def test_broken_file(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(content)
    with pytest.raises(TopologyError, match=why):
        topology("file", 3, 0, file=str(path))


def test_missing_file() -> None:
    with pytest.raises(TopologyError, match="No such file"):
        topology("file", 3, 0, file="/nowhere/graph.json")


@pytest.mark.slow
@quick
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.tuples(*2 * [st.integers(0, n - 1)]))))
def test_listed_is_sorted_and_the_inverse_of_matrix_of(pairs: list[tuple[int, int]]) -> None:
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    expected = sorted({(recipient, sender) for sender, recipient in pairs})
    back = listed(matrix_of(edges, 6))
    assert [(r, s) for s, r in back.tolist()] == expected
    assert back.dtype == np.int64


@pytest.mark.parametrize(
    ("kind", "peers", "options", "degrees"),
    [
        ("one-peer-exponential", 8, {}, {5}), ("epidemic", 5, {}, {4}), ("push", 5, {}, {4}),
    ],
)  # fmt: skip
def test_graphs_with_known_degrees(
    kind: str, peers: int, options: dict[str, float], degrees: set[int]
) -> None:
    graph = topology(kind, peers, 0, **options)
    assert is_simple(graph)
    assert is_connected(graph)
    assert set(graph.sum(axis=0).tolist()) == degrees


@pytest.mark.parametrize("name", ["small-world", "hypercube", "torus", "erdos-renyi"])
def test_a_topology_that_is_gone_has_a_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match='which is gone: set topology = "file"'):
        Config.from_flat({"topology": name})


def test_one_peer_exponential_averages_exactly_in_log_n_rounds() -> None:
    links = changing("one-peer-exponential", 8, 0, degree=1, directed=True)
    assert links is not None
    x = np.random.default_rng(0).normal(size=8)
    mixed = x
    for t in (4, 5, 6):  # starting at any round
        assert (links(t).sum(axis=0) == 1).all()
        mixed = (mixed + links(t).T @ mixed) / 2
    assert mixed == pytest.approx(np.full(8, x.mean()))


def test_who_is_asked_is_a_neighbour_of_that_round(tmp_path: Path) -> None:
    pairs_t = {1: [(0, 1), (2, 3), (4, 5)], 2: [(1, 2), (3, 4), (5, 6)]}
    lines = [f"{t},{a},{b}\n{t},{b},{a}" for t, ends in pairs_t.items() for a, b in ends]
    file = tmp_path / "edges.csv"
    file.write_text("\n".join(["round,sender,recipient", *lines]), encoding="utf-8")
    links = changing("file", 7, 0, degree=2, directed=False, file=str(file))
    whole = topology("file", 7, 0, file=str(file))
    pairs = Pairs(peers=7, rounds=9, seed=0, topology=whole, links=links, sampling="full")
    assert links is not None
    for t in range(1, 10):
        edges, asked = pairs.edges(t, np.empty((0, 2), dtype=np.int64))
        assert asked.all()
        assert (matrix_of(edges, 7) == links(t)).all()


def test_the_edges_of_each_round_come_from_a_csv(tmp_path: Path) -> None:
    file = tmp_path / "edges.csv"
    file.write_text("round,sender,recipient\n1,0,1\n3,2,0\n3,1,0\n", encoding="utf-8")
    links = changing("file", 3, 0, degree=2, directed=True, file=str(file))
    assert links is not None
    edges = [listed(links(t)).tolist() for t in (1, 2, 3, 4)]
    assert edges == [[[0, 1]], [], [[1, 0], [2, 0]], [[0, 1]]]
    assert listed(np.triu(topology("file", 3, 0, file=str(file)))).tolist() == [[0, 1], [0, 2]]
    with pytest.raises(TopologyError, match="the method needs answers"):
        changing("file", 3, 0, degree=2, directed=False, file=str(file))
    file.write_text("round,sender,recipient\n1,0,1\n1,1,0\n", encoding="utf-8")
    assert changing("file", 3, 0, degree=2, directed=False, file=str(file)) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("round,sender,recipient\n", "no edges: add a line"),
        ("round,sender\n1,0\n", "line 2: needs integers"),
        ("round,sender,recipient\n1,0,1\n0,0,1\n", "line 3: needs a round"),
        ("round,sender,recipient\n1,1,1\n", "line 2: needs a round"),
        ("round,sender,recipient\n1,0,3\n", "line 2: needs a round"),
    ],
)
def test_a_csv_of_something_else_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "edges.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError, match=why):
        topology("file", 3, 0, file=str(file))


def test_an_epidemic_draws_new_senders_each_round() -> None:
    links = changing("epidemic", 9, 5, degree=3, directed=True)
    assert links is not None
    drawn = [links(t) for t in range(1, 400)]
    assert all((graph.sum(axis=0) == 3).all() and not graph.diagonal().any() for graph in drawn)
    assert (drawn[0] == links(1)).all()
    often = np.mean(drawn, axis=0)[~np.eye(9, dtype=np.bool_)]
    assert abs(often - 3 / 8).max() < 4 * np.sqrt(3 / 8 * 5 / 8 / 399)


def test_who_asks_has_no_use_for_edges_with_a_direction() -> None:
    with pytest.raises(TopologyError, match="the method needs answers"):
        changing("epidemic", 9, 5, degree=3, directed=False)
