"""Worth of letters in the terminal and in a run's page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from coterie.app.lab.pages.worth import by_recipient, by_sender
from coterie.app.report.worth import Worth, read, write
from coterie.app.runs import quality
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from tests.app.fake_run import Story, write_run
from tests.app.report.pages import Page, decoded, page_of, toured
from tests.attacks.hostile_files import worth as hostile_worth
from tests.output import printed

NAMES = ("north", "south", "west")
VALUES = np.array([[0.0, 0.031, -0.02], [0.01, 0.001, 0.0], [np.nan, np.nan, np.nan]])
WORTH = Worth(
    "validation_accuracy", 10, np.array([0.7, 0.8, np.nan]), np.array([0.711, 0.811, np.nan]),
    VALUES / 2, VALUES, np.abs(VALUES) / 10,
)  # fmt: skip


def words(table: Table) -> list[str]:
    return [" ".join(line.split()) for line in printed(table, 120).splitlines()]


def test_the_terminal_lists_the_largest_effects() -> None:
    lines = words(by_recipient(WORTH, NAMES))
    assert lines[0].startswith("Worth of letters: validation accuracy in points (Shapley values ±")
    assert "north 70.0 % 71.1 % south +3.1 ± 0.3, west -2.0 ± 0.2" in lines
    assert "south 80.0 % 81.1 % north +1.0 ± 0.1, itself +0.1 ± 0.0" in lines
    assert "west – – –" in lines


def test_a_senders_mean_is_over_the_others() -> None:
    assert np.allclose(WORTH.to_others, [0.01, 0.031, -0.01])
    lines = words(by_sender(WORTH, NAMES))
    assert lines.index("south +3.1 +3.1 +3.1") < lines.index("west -1.0 -2.0 +0.0")


def test_a_terminal_says_how_many_peers_it_leaves_out() -> None:
    n = 50
    values = np.full((n, n), -4e-6)
    names = [f"site {k}" for k in range(n)]
    worth = Worth("test_accuracy", 0, np.ones(n), np.ones(n), values, values, 0 * values)
    senders = words(by_sender(worth, names))
    assert "40 of 50 peers, as above; worth.csv has all" in senders
    assert "site 0 +0.0 +0.0 +0.0" in senders
    assert not any("has all" in line for line in words(by_sender(WORTH, NAMES)))


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("has_shapley", [True, False])
def test_the_page_has_a_map(tmp_path: Path, has_shapley: bool) -> None:
    run_dir = write_run(tmp_path, Story(rounds=3))
    g = np.random.default_rng(0)
    table, errors = g.normal(size=(8, 8)) / 100, np.full((8, 8), 0.001)
    shapley = table if has_shapley else None
    worth = Worth("test_loss", 10 * has_shapley, np.ones(8), np.zeros(8), table, shapley, errors)
    assert Page(page_of(run_dir)).data["worth"] is None
    write(worth, run_dir, Run.read(run_dir).names)
    page = Page(page_of(run_dir))
    data, order = page.data["worth"], np.array(page.data["order"])
    shown = data["shapley" if has_shapley else "leave_one_out"]
    assert np.allclose(decoded(shown, 3, 8, 8), table[np.ix_(order, order)], rtol=1e-4)
    assert np.allclose(data["to_others"], worth.to_others, rtol=1e-5)
    dom = toured(run_dir / "report.html")
    assert ('data-key="shapley"' in dom) is has_shapley
    assert "worth for others" in dom


@pytest.mark.slow
def test_recipients_with_few_rows_of_the_measure_are_grey_without_numbers(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Story(rounds=1), dataset="table", table={}, partition={})
    split = json.loads((run_dir / "split.json").read_text())  # 12 validation, 45 test rows
    split[0]["validation"]["size"] = 19
    for row in split[1:]:
        row["validation"]["size"] = 20
    (run_dir / "split.json").write_text(json.dumps(split))
    run, table = Run.read(run_dir), np.full((8, 8), 0.5)
    worth = Worth("validation_loss", 0, np.ones(8), np.ones(8), table, table, 0 * table)
    table[0, 1] = -30.0
    unjudged = quality.too_few_rows(run, "validation")
    assert unjudged == {0: "fewer than 20 validation rows"}
    kept = worth.judged(run)
    assert "peer 0 – – fewer than 20 validation rows" in words(
        by_recipient(kept, run.names, unjudged)
    )
    assert kept.to_others[1] == 0.5
    assert not quality.too_few_rows(run), "45 test rows are enough"
    write(worth, run_dir, run.names)
    data = Page(page_of(run_dir)).data
    assert data["worth"]["to_others"][1] == 0.5
    assert data["held_out"]["validation"][0] == 19
    assert "worth for others" in toured(run_dir / "report.html")


@pytest.mark.slow
def test_many_peers_are_shown_in_blocks(tmp_path: Path) -> None:
    peers = 130
    run_dir = write_run(tmp_path, Story(peers=peers, clusters=2, rounds=1, weights="none"))
    table = np.full((peers, peers), 0.5)
    worth = Worth("test_loss", 0, np.ones(peers), np.ones(peers), table, table, 0 * table)
    write(worth, run_dir, Run.read(run_dir).names)
    page = Page(page_of(run_dir))
    values = decoded(page.data["worth"]["shapley"], 3)
    assert len(values) == len(page.data["blocks"]) ** 2 <= 100**2
    assert np.allclose(values, 0.5)
    toured(run_dir / "report.html")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"measure": "<script>"}, "not a table of 4 peers"),
        ({"orders": "-1"}, "not a table of 4 peers"),
        ({"orders": "1" + "0" * 5000}, "."),
        ({"alone": "1e301"}, "expected finite numbers"),
        ({"alone": "x"}, "could not convert"),
    ],
)
def test_a_hostile_table_is_refused_by_name(
    cell: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "worth.csv").write_text(hostile_worth())
    assert read(tmp_path, 4) is not None
    with pytest.raises(ResultsError, match=r"worth\.csv: not a table of 5 peers"):
        read(tmp_path, 5)
    (tmp_path / "worth.csv").write_text(hostile_worth(**cell))
    with pytest.raises(ResultsError, match=rf"worth\.csv: .*{message}"):
        read(tmp_path, 4)
