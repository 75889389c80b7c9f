"""Known worlds: a small one has the results that its truth says."""

from __future__ import annotations

from studies.known_worlds import WORLDS, outcome, world


def test_groups_of_a_small_world_are_exact_and_help() -> None:
    made = outcome(world("two groups", rows=120, columns=5, n=6, seed=1000))
    assert made.exact
    assert made.groups == 2
    assert made.gains.mean() > 0
    assert made.pooled.mean() < made.oracle.mean()


def test_each_world_has_an_institution_in_each_group() -> None:
    for groups in WORLDS.values():
        assert set(groups(8).tolist()) == set(range(groups(8).max() + 1))
