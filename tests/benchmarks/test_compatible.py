"""The table of other libraries in CONTRIBUTING.md, and the bounds of pyproject.toml. No index."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.compatible import BEGIN, BESIDE, END, PAGE, SHOWN, reason

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")


def test_the_page_has_a_row_for_each_library() -> None:
    """Its versions are those of the day on which the command ran."""
    block = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("| `")]
    names = [row[0].strip(" `") for row in rows]
    assert [re.sub(r"\d.*", "", name) for name in names[:4]] == 2 * ["flwr=="] + 2 * ["torch=="]
    assert tuple(names[4:]) == BESIDE
    for row in rows:
        assert len(row) == 2 + len(SHOWN)
        is_refused = row[1].startswith(" no: ")
        assert all(bool(version.strip()) != is_refused for version in row[2:])


def test_every_bound_from_above_has_its_reason_beside_it() -> None:
    requirements = PROJECT.partition("dependencies = [")[2].partition("[project.scripts]")[0]
    bounded = [line for line in requirements.splitlines() if re.search(r'"[^"]*<[^"]*"', line)]
    assert not [line for line in bounded if not re.search(r"\],?  # |,  # ", line)]
    libraries = {Requirement(found).name for found in re.findall(r'"([^"]*<[^"]*)"', requirements)}
    assert libraries == {"flwr", "torch", "torchvision", "ruff", "mkdocs"}


def test_the_reason_of_a_conflict_is_the_first_cause() -> None:
    error = """error: No solution found when resolving dependencies
      cause: Because a>=2 depends on
        c<4 and b depends on c>5, we can conclude that a and b are incompatible.
        And because you require a and b"""
    assert reason(error) == "a>=2 depends on c<4 and b depends on c>5"
    assert reason("Because only a<1 is available and you require a>1, we can conclude") != ""
    assert reason("error: no\n network") == "error: no network"
