"""Known worlds: a small one has the results that its truth says."""

from __future__ import annotations

import pytest

from studies.known_worlds import WORLDS, beside, draw, outcome


def test_groups_of_a_small_world_are_exact_and_help() -> None:
    made = outcome(draw("two groups", rows=120, columns=5, n=6, seed=1000))
    assert made.exact
    assert made.groups == 2
    assert made.gains.mean() > 0
    assert made.pooled.mean() < made.oracle.mean()


def test_each_world_has_an_institution_in_each_group() -> None:
    for groups in WORLDS.values():
        assert set(groups(8).tolist()) == set(range(groups(8).max() + 1))


@pytest.mark.long
def test_methods_of_the_product_are_measured_on_the_same_rows() -> None:
    """One letter of each of two groups tells more than 40 tuned rounds alone."""
    made = draw("two groups", rows=100, columns=6, n=4, seed=1000)
    (alone, sent_alone, _), (pooled, sent, _) = beside(made, ["local"], seed=0)
    assert sent_alone == 0
    assert 0 < sent < 10_000
    assert pooled > alone
