"""Shapley values of a game with a value per recipient (Shapley 1953).

A game maps each coalition S of the n players to values v(S), (R,), one per recipient. The Shapley
value of player j is its marginal contribution v(S + j) - v(S), averaged over all orders in which
the players can join. It is the only division of v(all) - v(nobody) that is efficient, symmetric,
additive, and 0 for a player without influence.

`exact` needs all 2^n coalitions. `sampled` averages over random orders; each is used forwards and
backwards (antithetic sampling: Mitchell, Cooper, Frank and Holmes, JMLR 2022), and every coalition
is needed once only, so a few hundred coalitions serve dozens of players.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Coalition = frozenset[int]
Game = Mapping[Coalition, Floats]
"""Coalition -> its value for each recipient, (R,)."""
Order = tuple[int, ...]
"""Order in which the players join."""


def coalitions(players: int) -> list[Coalition]:
    """Return all 2^n coalitions."""
    sizes = range(players + 1)
    return [frozenset(each) for size in sizes for each in combinations(range(players), size)]


def orders(players: int, count: int, rng: np.random.Generator) -> list[Order]:
    """Draw an even number of orders of the players: pairs of an order and its reverse."""
    assert count % 2 == 0
    drawn = [tuple(rng.permutation(players).tolist()) for _ in range(count // 2)]
    return [order for one in drawn for order in (one, one[::-1])]


def prefixes(order: Order) -> list[Coalition]:
    """Return the n + 1 coalitions of an order, from nobody to all."""
    return [frozenset(order[:size]) for size in range(len(order) + 1)]


def exact(game: Game, players: int) -> Floats:
    """Return the Shapley values (R, n) of a game with all 2^n coalitions."""
    everybody = frozenset(range(players))
    values = np.zeros((len(game[everybody]), players))
    for coalition in coalitions(players)[:-1]:
        share = 1 / (players * math.comb(players - 1, len(coalition)))
        for player in everybody - coalition:
            values[:, player] += share * (game[coalition | {player}] - game[coalition])
    return values


def sampled(game: Game, drawn: Sequence[Order]) -> tuple[Floats, Floats]:
    """Estimate Shapley values (R, n) and their standard errors (R, n) from pairs of `orders`."""
    # Errors are of the means, from the deviation over pairs; NaN for a single pair.
    marginal_orn = np.stack([_marginals(game, order) for order in drawn])
    pair_prn = (marginal_orn[::2] + marginal_orn[1::2]) / 2
    pairs = len(pair_prn)
    if pairs == 1:
        return pair_prn[0], np.full(pair_prn[0].shape, np.nan)
    return pair_prn.mean(axis=0), pair_prn.std(axis=0, ddof=1) / math.sqrt(pairs)


def leave_one_out(game: Game, players: int) -> Floats:
    """Return v(all) - v(all but j), (R, n)."""
    everybody = frozenset(range(players))
    lost = [game[everybody] - game[everybody - {player}] for player in range(players)]
    return np.stack(lost, axis=1)


def _marginals(game: Game, order: Order) -> Floats:
    """Return the contribution of each player when it joins in an order, (R, n)."""
    steps = [game[after] - game[before] for before, after in pairwise(prefixes(order))]
    values = np.empty((len(steps[0]), len(order)))
    values[:, list(order)] = np.stack(steps, axis=1)
    return values
