"""Epsilon-greedy choice by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clients.rule import epsilon_greedy

CHANCE, BEST = np.array([4, 1, 3, 2]), np.array([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("explores", "taken"),
    [
        ([], []),
        ([False, False, False], [1, 2, 3]),
        ([True, True, True], [4, 1, 3]),
        ([False, True, True], [1, 4, 3]),  # the second of `shuffled` is taken already
        ([True, False, True, False], [4, 1, 3, 2]),
    ],
)
def test_each_slot_goes_to_the_first_who_is_left(explores: list[bool], taken: list[int]) -> None:
    assert epsilon_greedy(explores, CHANCE, BEST).tolist() == taken
