"""A few of the invalid letters that `tests.fuzz.letters` and `tests.fuzz.formats` send."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import formats
from tests.fuzz.letters import Target, attack, mutations


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("node"))


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore")
def test_no_bad_letter_is_accepted_and_none_crashes_the_node(target: Target, seed: int) -> None:
    result = attack(target, seed, 100)
    assert (result["crash"], result["accepted"]) == (0, 0)
    assert result["letters"] > 100
    assert result["letters refused"] > 50


def test_every_mutation_is_bad_on_its_own(target: Target) -> None:
    rng = random.Random(0)
    for name, mutate in mutations(target).items():
        for kind in ("offer", "answer"):
            letter = mutate(rng, target.write(kind, 1, 1))
            response = target.node.handle(target.request([letter]))
            assert len(response.refused) == 1, (name, kind)


@pytest.mark.some(4)
@pytest.mark.parametrize("form", formats.FORMATS, ids=" ".join)
def test_a_broken_letter_of_any_format_costs_its_sender_only(
    form: tuple[str, str, str], tmp_path: Path
) -> None:
    counts = formats.attack(formats.Target(tmp_path, *form), 0, 15)
    assert (counts["crash"], counts["lost"]) == (0, 0)
    assert counts["refused"] >= 5
