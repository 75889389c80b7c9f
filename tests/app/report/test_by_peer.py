"""The results by peer: by hand, in the page and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.app.experiments.table import Table
from coterie.app.report import by_peer
from coterie.app.report.comparison import Comparison
from coterie.app.report.panel import Cell
from coterie.app.runs.rundir import Run
from tests.app.fake_run import write_config, write_metrics, write_progress, write_split
from tests.output import csv_rows


def made(
    directory: Path,
    method: str,
    seed: int,
    ends: dict[str, float | None],
    field: str = "test_accuracy",
) -> Run:
    """A run whose peers end with these numbers, by name; their examples are 10, 20, ..."""
    run = directory / f"{method}-{seed}"
    run.mkdir(parents=True)
    write_config(run, {"method": method, "peers": len(ends), "seed": seed})
    write_metrics(
        run,
        [
            {"round": 0, "peer": p, "peer_name": name, "test_loss": 1.0} | {field: value}
            for p, (name, value) in enumerate(ends.items())
        ],
    )
    write_split(run, [None] * len(ends), samples=[10 * (p + 1) for p in range(len(ends))])
    write_progress(run)
    return Run.read(run)


def hospitals(directory: Path) -> Table:
    """Two methods on two seeds; one hospital has no test data in the first."""
    return Table.of_runs(
        {
            "local": [
                made(directory, "local", 0, {"Basel": 0.5, "Zurich": 0.25}),
                made(directory, "local", 1, {"Basel": 0.75, "Zurich": 0.25}),
            ],
            "cobo": [
                made(directory, "cobo", 0, {"Basel": 0.75, "Zurich": None}),
                made(directory, "cobo", 1, {"Basel": 0.25, "Zurich": 0.5}),
            ],
        },
        {},
    )


def rows_of(table: Table) -> dict[str, Sequence[Cell]]:
    panel = by_peer.compared(Comparison(table))
    assert panel is not None
    return dict(panel.rows)


def test_means_over_seeds_and_gains_over_local_by_hand(tmp_path: Path) -> None:
    rows = rows_of(hospitals(tmp_path))
    assert [cell.text for cell in rows["Basel"][:3]] == ["10", "12", "45"]
    assert [cell.value for cell in rows["Zurich"][:3]] == [20, 12, 45]
    # Basel under CoBo: (0.75 + 0.25) / 2 = 0.5; gains 0.25 and -0.5, mean -0.125
    assert rows["Basel"][3:] == [Cell("62.5", "", 0.625), Cell("50.0", "-12.5", 0.5, "harm")]
    # Zurich: the seed without test data is left out of both
    assert rows["Zurich"][3:] == [Cell("25.0", "", 0.25), Cell("50.0", "+25.0", 0.5)]


def test_other_institutions_of_other_seeds_have_rows_of_their_own(tmp_path: Path) -> None:
    runs = [
        made(tmp_path, "local", 0, {"a": 0.5, "b": 0.5}),
        made(tmp_path, "local", 1, {"b": 0.7, "c": 0.9}),
    ]
    rows = rows_of(Table.of_runs({"local": runs}))
    assert {name: cells[3].text for name, cells in rows.items()} == {
        "a": "50.0", "b": "60.0", "c": "90.0"
    }  # fmt: skip


def test_losses_where_there_is_no_accuracy(tmp_path: Path) -> None:
    runs = {
        "local": [made(tmp_path, "local", 0, {"a": 2.0}, "test_loss")],
        "cobo": [made(tmp_path, "cobo", 0, {"a": 0.5}, "test_loss")],
    }
    rows = rows_of(Table.of_runs(runs))
    assert rows["a"][3:] == [Cell("2", "", 2.0), Cell("0.5", "+1.5", 0.5)]


def test_the_csv_has_every_peer_of_every_run(tmp_path: Path) -> None:
    panel = by_peer.compared(Comparison(hospitals(tmp_path)))
    assert panel is not None
    lines = csv_rows(panel.files()[by_peer.FILE])
    assert len(lines) == 8
    assert lines[4] == {
        "method": "cobo", "seed": "0", "peer": "0", "peer_name": "Basel", "samples": "10.0",
        "test_accuracy": "0.75", "test_loss": "1.0", "gain": "0.25", "validation": "12.0",
        "test": "45.0",
    }  # fmt: skip
    assert (lines[5]["test_accuracy"], lines[5]["gain"]) == ("", "")


def test_the_first_peers_are_listed(tmp_path: Path) -> None:
    many = made(tmp_path, "local", 0, {f"site {k}": 0.5 for k in range(by_peer.SHOWN + 5)})
    panel = by_peer.compared(Comparison(Table.of_runs({"local": [many]})))
    assert panel is not None
    assert len(panel.rows) == by_peer.SHOWN
    assert len(panel.files()[by_peer.FILE].splitlines()) == 1 + by_peer.SHOWN + 5
