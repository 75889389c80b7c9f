from __future__ import annotations

from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import coterie.strategies.pairs
from coterie import ranges
from coterie.app.config.config import Config
from coterie.clients.methods import cobo
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Silent, Wanted, WantedAnswers
from coterie.strategies.protocol import Edges, no_edges
from coterie.strategies.topology import listed, matrix_of
from tests.topologies import topology


def make(kind: type[ExchangePlan], n: int = 6, graph: str = "full", **changes: Any) -> Any:
    known = {"peers": n, "rounds": 1000, "seed": 3, "topology": topology(graph, n, 0)}
    return kind(**{**known, **changes})


def pairs(sampling: str = "constant", probability: float = 0.0, **changes: Any) -> Any:
    return make(Pairs, sampling=sampling, probability=probability, **changes)


def edges_of(*pairs: tuple[int, int]) -> Edges:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


@pytest.mark.parametrize("kind", [Silent, Everyone, Wanted, WantedAnswers, Pairs])
@pytest.mark.parametrize("graph", ["full", "ring"])
def test_edges_are_sorted_allowed_and_pure(kind: type[ExchangePlan], graph: str) -> None:
    rng = np.random.default_rng(0)
    for t in range(1, 20):
        wants = listed(rng.random((6, 6)) < 0.3)
        wants = wants[wants[:, 0] != wants[:, 1]]
        edges, asked = make(kind, graph=graph).edges(t, wants)
        assert (edges == listed(matrix_of(edges, 6) & topology(graph, 6, 0))).all()
        assert asked.shape == (len(edges),)
        assert asked.dtype == np.bool_
        shuffled = rng.permutation(np.concatenate([wants, wants]))
        again, asked_again = make(kind, graph=graph).edges(t, shuffled)
        assert (edges == again).all()
        assert (asked == asked_again).all()


def test_silent_has_no_edges() -> None:
    edges, asked = make(Silent).edges(1, edges_of((0, 1)))
    assert (len(edges), len(asked)) == (0, 0)
    assert not Silent.exchanges


def test_everyone_has_all_edges_and_asks_nothing() -> None:
    edges, asked = make(Everyone, 3).edges(1, no_edges())
    assert edges.tolist() == [[1, 0], [2, 0], [0, 1], [2, 1], [0, 2], [1, 2]]
    assert not asked.any()


def test_wanted_keeps_to_the_topology() -> None:
    wants = edges_of((0, 3), (1, 0), (0, 1))
    edges, asked = make(Wanted, graph="ring").edges(1, wants)
    assert edges.tolist() == [[1, 0], [0, 1]]
    assert not asked.any()
    assert make(WantedAnswers, graph="ring").edges(1, wants)[1].all()


def test_sampled_pairs_ask_both_ways_and_wants_only_deliver() -> None:
    strategy = pairs(probability=0.3)
    wants = edges_of((0, 1), (2, 3), (4, 5))
    for t in range(1, 30):
        edges, asked = strategy.edges(t, wants)
        sampled = matrix_of(edges[asked], 6)
        assert (sampled == sampled.T).all()
        assert (matrix_of(edges[~asked], 6) == matrix_of(wants, 6) & ~sampled).all()


def test_the_topology_does_not_move_the_draws() -> None:
    full, ring = (pairs(graph=graph) for graph in ("full", "ring"))
    for t in range(1, 10):
        everywhere = matrix_of(full.edges(t, no_edges())[0], 6)
        there = matrix_of(ring.edges(t, no_edges())[0], 6)
        assert (there == everywhere & ring.topology).all()


@pytest.mark.parametrize(
    ("sampling", "probability", "t", "p"),
    [
        ("constant", 0, 7, 1 / 6),
        ("constant", 0.25, 7, 0.25),
        ("inverse-time", 0, 1, 1),
        ("inverse-time", 0, 50, 1 / 50),
        ("mixed", 0, 2, 1 / 6),  # 0.2 % of 1000 rounds are 2
        ("mixed", 0, 3, 1 / 3),
        ("full", 0, 999, 1),
        ("official", 0, 800, 2 / 6),
        ("official", 0, 900, 1 / 30),
    ],
)
def test_schedules(sampling: str, probability: float, t: int, p: float) -> None:
    assert pairs(sampling, probability).probability_at(t) == pytest.approx(p, rel=1e-15)


def test_cobo_hands_its_sampling_to_the_strategy() -> None:
    kinds = ranges.options_of(cobo.CoBo)["sampling"].kinds
    assert kinds == get_args(get_type_hints(Pairs)["sampling"])
    config = Config.from_flat({"cobo.sampling": "constant", "cobo.probability": 0.25, "peers": 4})
    assert config.strategy().probability_at(1) == 0.25  # type: ignore[attr-defined]


def test_pairs_are_sampled_independently_with_the_probability() -> None:
    strategy = pairs(n=12, probability=0.2)
    drawn = [matrix_of(strategy.edges(t, no_edges())[0], 12) for t in range(1, 501)]
    counts = np.mean(drawn, axis=0)
    upper = counts[np.triu_indices(12, 1)]
    sigma = np.sqrt(0.2 * 0.8 / 500)
    assert upper.mean() == pytest.approx(0.2, abs=4 * sigma / np.sqrt(66))
    assert upper.std() == pytest.approx(sigma, rel=0.35)  # 4 / sqrt(2 * 66)


def test_pairs_of_many_peers_are_sampled_by_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipping gives the frequencies of independent draws, and every pair at probability 1."""
    monkeypatch.setattr(coterie.strategies.pairs, "_EACH", 5)
    counts = np.zeros((6, 6))
    for t in range(1, 501):
        edges, asked = pairs("constant", 0.3).edges(t, no_edges())
        assert asked.all()
        assert {*map(tuple, edges)} == {*map(tuple, edges[:, ::-1])}
        counts += matrix_of(edges, 6)
    off = counts[~np.eye(6, dtype=np.bool_)] / 500
    assert not counts.diagonal().any()
    assert np.abs(off - 0.3).max() < 0.1  # five standard errors
    assert np.array_equal(pairs("full").edges(1, no_edges())[0], listed(topology("full", 6, 0)))


def test_ten_thousand_peers_sample_as_many_pairs_as_expected() -> None:
    """50 million pairs, of which an array would take 800 MB."""
    many = Pairs(
        peers=10_000, rounds=9, seed=0, topology=topology("full", 10_000, 0),
        sampling="constant", probability=1e-4,
    )  # fmt: skip
    edges, _ = many.edges(1, no_edges())
    assert abs(len(edges) / 2 - 5000) < 5 * 71
    assert edges.max() > 9_900 > 100 > edges.min()


def test_another_seed_samples_other_pairs() -> None:
    one, other = pairs(), pairs(seed=4)
    drawn = [[s.edges(t, no_edges())[0].tolist() for t in range(1, 20)] for s in (one, other)]
    assert drawn[0] != drawn[1]


def test_an_unknown_schedule_is_an_error() -> None:
    with pytest.raises(ValueError, match="'daily'"):
        pairs("daily").edges(1, no_edges())


def test_the_last_round_is_always_evaluated() -> None:
    strategy = make(Silent, rounds=7, evaluate_every=3)
    assert [t for t in range(8) if strategy.is_evaluated(t)] == [0, 3, 6, 7]
    assert [strategy.next_evaluated(t) for t in range(1, 8)] == [3, 3, 3, 6, 6, 6, 7]


def test_each_round_has_the_edges_of_the_wants_as_they_are_when_it_begins() -> None:
    strategy = make(WantedAnswers, rounds=7, evaluate_every=3)
    reached = [1]
    played = []
    for this in strategy.each_round(2, 4, lambda t: edges_of((0, t), (0, reached[-1]))):
        played.append((this.t, this.edges.tolist(), this.asked.tolist(), this.evaluated))
        reached.append(5)
    assert played == [
        (2, [[0, 1], [0, 2]], [True, True], False),
        (3, [[0, 3], [0, 5]], [True, True], True),
        (4, [[0, 4], [0, 5]], [True, True], False),
    ]


@pytest.mark.parametrize(
    ("sampling", "rounds", "updates"),
    [
        ("full", 10, None),
        ("constant", 160, 20),  # 160 / 8
        ("constant", 800, None),
        ("inverse-time", 1500, 8),  # the harmonic number is log 1500 + 0.577 = 7.9
        ("mixed", 1500, 6),  # 3 / 8, then log 1500 + 0.577 - 11 / 6
        ("official", 300, 75),
        ("official", 1500, None),  # 200 + 2 (sqrt 1500 - sqrt 800)
    ],
)
def test_too_few_updates_of_a_pair_are_told(
    sampling: str, rounds: int, updates: int | None
) -> None:
    lines = pairs(sampling, n=8, rounds=rounds).cautions()
    assert len(lines) == (updates is not None)
    assert all(f"updated {updates} times in {rounds} rounds" in line for line in lines)
