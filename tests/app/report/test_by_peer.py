"""The results by peer: by hand, in the page and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from coterie.app.experiments.table import Table
from coterie.app.report import by_peer, comparison_page
from coterie.app.runs.rundir import Run
from tests.app.fake_run import write_config, write_metrics, write_progress, write_split
from tests.app.report.pages import Page


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


def test_means_over_seeds_and_gains_over_local_by_hand(tmp_path: Path) -> None:
    table = by_peer.table(hospitals(tmp_path))
    assert table is not None
    assert (table.methods, table.is_accuracy, table.total) == (["local", "cobo"], True, 2)
    basel, zurich = table.rows
    assert basel[:4] == ("Basel", "10", "12", "45")
    assert zurich[:4] == ("Zurich", "20", "12", "45")
    # Basel under CoBo: (0.75 + 0.25) / 2 = 0.5; gains 0.25 and -0.5, mean -0.125
    assert basel.cells == [("62.5", "", 0.625, False), ("50.0", "-12.5", 0.5, True)]
    # Zurich: the seed without test data is left out of both
    assert zurich.cells == [("25.0", "", 0.25, False), ("50.0", "+25.0", 0.5, False)]


def test_other_institutions_of_other_seeds_have_rows_of_their_own(tmp_path: Path) -> None:
    runs = [
        made(tmp_path, "local", 0, {"a": 0.5, "b": 0.5}),
        made(tmp_path, "local", 1, {"b": 0.7, "c": 0.9}),
    ]
    table = by_peer.table(Table.of_runs({"local": runs}))
    assert table is not None
    assert [(row.name, row.cells[0].text) for row in table.rows] == [
        ("a", "50.0"), ("b", "60.0"), ("c", "90.0")
    ]  # fmt: skip


def test_losses_where_there_is_no_accuracy(tmp_path: Path) -> None:
    runs = {
        "local": [made(tmp_path, "local", 0, {"a": 2.0}, "test_loss")],
        "cobo": [made(tmp_path, "cobo", 0, {"a": 0.5}, "test_loss")],
    }
    table = by_peer.table(Table.of_runs(runs))
    assert table is not None
    assert not table.is_accuracy
    assert table.rows[0].cells == [("2", "", 2.0, False), ("0.5", "+1.5", 0.5, False)]


def test_the_csv_has_every_peer_of_every_run(tmp_path: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(by_peer.as_csv(hospitals(tmp_path)))))
    assert len(lines) == 8
    assert lines[4] == {
        "method": "cobo", "seed": "0", "peer": "0", "peer_name": "Basel", "samples": "10.0",
        "test_accuracy": "0.75", "test_loss": "1.0", "gain": "0.25", "validation": "12.0",
        "test": "45.0",
    }  # fmt: skip
    assert (lines[5]["test_accuracy"], lines[5]["gain"]) == ("", "")


def test_the_page_lists_peers_and_says_how_many_it_leaves_out(tmp_path: Path) -> None:
    page = Page(comparison_page.write(hospitals(tmp_path / "a"), tmp_path / "a", "p"))
    assert "Results by peer" in page.text
    assert "in red where training alone is better" in page.text
    assert (
        '<td data-value="0.5"><span>50.0</span><small class="harm">-12.5</small></td>' in page.html
    )
    many = made(tmp_path / "b", "local", 0, {f"site {k}": 0.5 for k in range(by_peer.SHOWN + 5)})
    rows = Table.of_runs({"local": [many]})
    page = Page(comparison_page.write(rows, tmp_path / "b", "p"))
    assert "The first 100 of 105 peers; comparison-peers.csv has all." in page.text
    table = page.html[page.html.index('id="by-peer"') :]
    assert table[: table.index("</table>")].count("<tr>") == 1 + 100
