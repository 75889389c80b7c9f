"""Standings of the league: numbers by hand, tests per column, no total."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.table import Entry
from coterie.app.lab.pages import league
from coterie.app.lab.pages.league import Line, Lines
from coterie.app.runs.files import ResultsError


def course(*ends: float, sent: float = 100.0) -> Line:
    """Return courses over three rounds: the gain of each seed is complete in the last round."""
    return Line(values=[[[0.0, sent, 2 * sent], [0.1, end - 0.2, end]] for end in ends])


def of(*means: float) -> Line:
    """Return accuracies of two peers, 0.1 below and above the mean of each seed."""
    return Line(values=[[mean - 0.1, mean + 0.1] for mean in means])


@pytest.fixture
def cells() -> Lines:
    good, bad = (0.80, 0.81, 0.79, 0.80), (0.40, 0.42, 0.41, 0.39)
    cells: Lines = {}
    for method, means in (("local", bad), ("cobo", good), ("dpfl", good[::-1]), ("oracle", good)):
        cells[method, "accuracy"], cells[method, "course"] = of(*means), course(*means)
        cells[method, "gradients"] = Line(values=[10.0] * 4)
    cells["oracle", "accuracy"] = of(0.9, 0.9, 0.9, 0.9)
    return cells


COLUMN = {column.key: column for column in league.COLUMNS}


def entry(cells: Lines, method: str, column: str) -> Entry:
    return league.table(cells, {}).entries(COLUMN[column])[method]


def leading(cells: Lines, column: str, keys: Mapping[str, Scalar] = {}) -> set[str]:
    return set(league.table(cells, keys).bold(COLUMN[column]))


def test_a_column_is_the_mean_over_seeds_of_its_definition(cells: Lines) -> None:
    assert entry(cells, "cobo", "accuracy").text == "80.00 ± 0.82"
    assert entry(cells, "cobo", "worst").value == pytest.approx(0.70)
    assert entry(cells, "cobo", "gain").value == pytest.approx(0.80 - 0.405)
    assert entry(cells, "cobo", "harmed").value == 0
    assert entry(cells, "local", "gain").value == entry(cells, "local", "harmed").value == 0
    assert entry(cells, "cobo", "gradients").text == "10"
    # seed 0: Local ends at 0.40, the best ranked method at 0.80: the target is 0.76, and so on
    assert entry(cells, "cobo", "bytes_to_best").text == "200 B"
    assert entry(cells, "local", "bytes_to_best").text == "never"


def test_the_best_method_is_the_best_over_seeds_not_that_of_each_seed(cells: Lines) -> None:
    """FedEM is above CoBo with seed 0 only, so CoBo's target stays its own end."""
    cells["fedem", "accuracy"], cells["fedem", "course"] = (
        of(0.9, 0.5, 0.5, 0.5),
        course(0.9, *[0.5] * 3),
    )
    assert entry(cells, "cobo", "bytes_to_best").text == "200 B"


def test_attackers_are_left_out(cells: Lines) -> None:
    cells["cobo", "attacked"] = Line(values=[[None, 0.5], [0.7, None]])
    assert entry(cells, "cobo", "attacked").value == pytest.approx(0.6)


def test_a_group_is_bold_and_a_reference_is_not_ranked(cells: Lines) -> None:
    assert leading(cells, "accuracy") == {"cobo", "dpfl"}, (
        "not local, and not oracle with the highest mean"
    )
    assert not leading(cells, "gradients")
    two = {at: cell for at, cell in cells.items() if at[0] in ("cobo", "dpfl")}
    assert not leading(two, "accuracy")


def test_a_gain_that_a_test_of_repeated_divisions_doubts_is_not_bold() -> None:
    """Differences 1, 3, 5 and 3 points: t = 3.7, p = 0.035.

    If every seed divides the rows again, with 0.74 test rows per training row, t is smaller by the
    root of 1 + 4 * 0.74, p = 0.16.
    """
    cells: Lines = {
        ("local", "accuracy"): of(0.80, 0.80, 0.80, 0.80),
        ("cobo", "accuracy"): of(0.81, 0.83, 0.85, 0.83),
    }
    keys = league.problem("heart-disease", league.PUBLISHED).keys
    assert leading(cells, "accuracy") == {"cobo"}
    assert leading(cells, "accuracy", keys) == set()


def test_harming_every_peer_with_every_seed_is_not_bold(cells: Lines) -> None:
    cells["fedavg", "accuracy"] = of(0.1, 0.1, 0.1, 0.1)
    assert entry(cells, "fedavg", "harmed").text == "100 ± 0"
    assert leading(cells, "harmed") == {"local", "cobo", "dpfl"}


def test_no_column_ranks_methods_over_columns_or_problems() -> None:
    assert [column.key for column in league.COLUMNS] == [
        "accuracy", "gain", "worst", "harmed", "bytes_to_best", "gradients", "attacked", "private"
    ]  # fmt: skip


def test_a_file_gives_every_cell_back(cells: Lines, tmp_path: Path) -> None:
    choice = Choice({"learning-rate": 0.1}, {"learning-rate": "low"}, 15, (0.1, 0.3))
    cells["cobo", "accuracy"] = Line("12ab", choice, of(0.5).values)
    cells["knn-per", "private"] = Line(values=[], refused='a "reason", with commas')
    league.write("some", cells, tmp_path)
    again = league.read("some", tmp_path)
    assert again == cells
    assert again["cobo", "accuracy"].choice.rates == (0.1, 0.3)
    assert [method for method, _ in again][:3] == ["local"] * 3, "in the order of methods"
    assert entry(again, "knn-per", "private").text == "refused"
    text = (tmp_path / "some.csv").read_text()
    (tmp_path / "some.csv").write_text(text.replace("[", "{", 1))
    with pytest.raises(ResultsError, match=r"some\.csv of the league is damaged"):
        league.read("some", tmp_path)


@pytest.mark.parametrize("name", league.problems(league.PUBLISHED))
def test_published_results_have_a_value_for_each_peer_and_seed(name: str) -> None:
    problem = league.problem(name, league.PUBLISHED)
    cells = league.read(name, league.PUBLISHED)
    for (method, column), cell in cells.items():
        assert bool(cell.values) != bool(cell.refused), (method, column)
        if cell.values and column in ("accuracy", "attacked", "private"):
            assert np.array(cell.values).shape == (problem.seeds, problem.keys["peers"])
