"""The share of the weight that attackers get, over rounds and seeds."""

from __future__ import annotations

import numpy as np

from studies.hostile_weights import course

FIRST, LAST = np.eye(3, dtype=np.bool_)[[0, 2]]  # of three peers one attacks
NOTHING = np.eye(3)


def test_the_mean_is_over_honest_peers_and_then_over_seeds() -> None:
    # Peer 0 gives the last peer 1 of 4, peer 1 gives it 3 of 4; what it gives itself is ignored.
    first = np.array([[9, 3, 1], [1, 9, 3], [5, 5, 0]])
    # Peer 1 gives peer 0 half, peer 2 nothing; weights count by size.
    other = np.array([[1, 0, 0], [-2, 0, 2], [0, 1, 0]])
    shares = course([(LAST, np.stack([first, NOTHING])), (FIRST, np.stack([other, other]))])
    np.testing.assert_allclose(shares, [((1 / 4 + 3 / 4) / 2 + (1 / 2 + 0) / 2) / 2, 1 / 4])


def test_a_round_in_which_nobody_gives_anything_has_no_share() -> None:
    shares = course([(LAST, np.stack([NOTHING, np.ones((3, 3))]))])
    np.testing.assert_allclose(shares, [np.nan, 1 / 2])
