"""Coefficients of partial pooling on the page of a run."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from coterie.app.report import coefficients, run_page
from coterie.app.runs.rundir import Run
from tests.clients.methods.test_partial_pooling import hospitals, run


def test_a_page_says_who_is_like_whom_and_plots_each_column(tmp_path: Path) -> None:
    done = Run.read(run(tmp_path, hospitals()).directory)
    section = coefficients.of_run(done)
    assert section is not None
    groups, evidence = section.lines()
    assert (
        groups
        == "2 groups of similar institutions: peer 0, peer 2, peer 4; peer 1, peer 3, peer 5."
    )
    by_number = {int(k): float(x) for k, x in re.findall(r"(\d): ([+-]\d+\.\d)", evidence)}
    assert max(by_number, key=by_number.__getitem__) == 2
    assert {plot.column for plot in section.plots} == {"input 1", "input 2", "input 3"}
    page = (done.directory / run_page.write(done.directory).file).read_text("utf-8")
    assert page.count("<figcaption>") >= 3
    rows = list(csv.DictReader((done.directory / "coefficients.csv").read_text().splitlines()))
    for plot in section.plots:
        assert [mark.label for mark in plot.marks] == [
            row["institution"] for row in rows if row["column"] == plot.column
        ]
        for mark in plot.marks:
            assert mark.low < mark.estimate < mark.high
            assert (mark.own is None) == mark.label.startswith("group")
            assert mark.title in page
            assert re.search(r"odds ratio [\d.e+-]+, 95 %", mark.title)


def test_other_runs_have_no_such_section(tmp_path: Path) -> None:
    done = run(tmp_path, hospitals(), method="local")
    assert coefficients.of_run(Run.read(done.directory)) is None
