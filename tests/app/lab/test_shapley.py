"""Shapley values: the axioms, a game by hand, and exact against sampled values."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from coterie.app.lab.shapley import (
    Game,
    coalitions,
    exact,
    leave_one_out,
    orders,
    prefixes,
    sampled,
)

PLAYERS, RECIPIENTS = 4, 3
EVERYBODY = frozenset(range(PLAYERS))


def random_game(players: int = PLAYERS, seed: int = 0) -> Game:
    g = np.random.default_rng(seed)
    return {each: g.normal(size=RECIPIENTS) for each in coalitions(players)}


def test_a_game_of_two_by_hand() -> None:
    """v() = 1, v(0) = 3, v(1) = 4, v(01) = 10: player 0 adds 2 first and 6 second."""
    values = {(): 1.0, (0,): 3.0, (1,): 4.0, (0, 1): 10.0}
    game = {frozenset(each): np.array([value]) for each, value in values.items()}
    assert exact(game, 2).tolist() == [[4.0, 5.0]]
    assert leave_one_out(game, 2).tolist() == [[6.0, 7.0]]


def test_gloves() -> None:
    """One left glove (0) and two right ones (1, 2) (Shapley 1953): 2/3, 1/6, 1/6."""
    game = {each: np.array([float(0 in each and len(each) > 1)]) for each in coalitions(3)}
    assert np.allclose(exact(game, 3), [[2 / 3, 1 / 6, 1 / 6]], atol=1e-15)
    assert leave_one_out(game, 3).tolist() == [[1.0, 0.0, 0.0]]


def test_efficiency() -> None:
    game = random_game()
    gain = game[EVERYBODY] - game[frozenset()]
    estimate, _ = sampled(game, orders(PLAYERS, 6, np.random.default_rng(1)))
    for values in (exact(game, PLAYERS), estimate):
        assert np.allclose(values.sum(axis=1), gain, atol=1e-14)


def test_a_player_without_influence_is_worth_exactly_nothing() -> None:
    smaller = random_game()
    game = {each: smaller[each - {2}] for each in coalitions(PLAYERS)}
    estimate, errors = sampled(game, orders(PLAYERS, 6, np.random.default_rng(1)))
    for values in (exact(game, PLAYERS), estimate, errors, leave_one_out(game, PLAYERS)):
        assert (values[:, 2] == 0).all()
        assert (values[:, 0] != 0).all()


def test_symmetry() -> None:
    """Players 1 and 3 have the same effect: only their number counts."""
    base = random_game(5)
    game = {
        each: base[(each & {0, 2}) | {3 + k for k in range(len(each & {1, 3}))}]
        for each in coalitions(PLAYERS)
    }
    values = exact(game, PLAYERS)
    assert np.allclose(values[:, 1], values[:, 3], atol=1e-14)
    assert not np.allclose(values[:, 0], values[:, 1])


def test_additivity() -> None:
    one, other = random_game(seed=1), random_game(seed=2)
    both = {each: 2 * one[each] - other[each] for each in one}
    combined = 2 * exact(one, PLAYERS) - exact(other, PLAYERS)
    assert np.allclose(exact(both, PLAYERS), combined, atol=1e-14)


def test_all_orders_give_the_exact_values() -> None:
    game = random_game()
    forwards = [each for each in permutations(range(PLAYERS)) if each < each[::-1]]
    estimate, _ = sampled(game, [order for one in forwards for order in (one, one[::-1])])
    assert np.allclose(estimate, exact(game, PLAYERS), atol=1e-14)


def test_standard_errors_are_those_of_the_estimates() -> None:
    """Over many draws, estimates deviate from the exact values by one error on average."""
    game, g = random_game(), np.random.default_rng(3)
    drawn = [sampled(game, orders(PLAYERS, 40, g)) for _ in range(300)]
    deviation = np.stack([values for values, _ in drawn]) - exact(game, PLAYERS)
    error = np.sqrt(np.mean([errors**2 for _, errors in drawn], axis=0))
    assert np.allclose(np.sqrt((deviation**2).mean(axis=0)), error, rtol=0.15)


def test_orders_come_in_pairs() -> None:
    drawn = orders(5, 6, np.random.default_rng(0))
    assert all(sorted(order) == list(range(5)) for order in drawn)
    assert [order[::-1] for order in drawn[::2]] == drawn[1::2]
    assert len(set(drawn)) == 6
    _, errors = sampled(random_game(5), drawn[:2])
    assert np.isnan(errors).all()


def test_prefixes() -> None:
    assert prefixes((2, 0, 1)) == [
        frozenset(), frozenset({2}), frozenset({0, 2}), frozenset({0, 1, 2}),
    ]  # fmt: skip


def test_values_that_are_not_defined_stay_undefined_for_that_recipient() -> None:
    game = {**random_game(), frozenset({1}): np.array([np.nan, 0.0, 0.0])}
    values = exact(game, PLAYERS)
    assert np.isnan(values[0]).all()
    assert np.isfinite(values[1:]).all()


@pytest.mark.parametrize("players", [1, 2, 5])
def test_there_are_as_many_coalitions_as_subsets(players: int) -> None:
    assert len(set(coalitions(players))) == 2**players
