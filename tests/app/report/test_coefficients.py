"""Coefficients of partial pooling on the page of a run."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

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
    by_number = {int(k): float(x) for k, x in re.findall(r"(\d):([+-]\d+\.\d)", evidence)}
    assert max(by_number, key=by_number.__getitem__) == 2
    assert {plot.title.partition(" (")[0] for plot in section.plots} == {
        "input 1", "input 2", "input 3"
    }  # fmt: skip
    page = (done.directory / run_page.write(done.directory).file).read_text("utf-8")
    assert page.count("<figcaption>") >= 3
    rows = list(csv.DictReader((done.directory / "coefficients.csv").read_text().splitlines()))
    for plot in section.plots:
        assert [line.name for line in plot.lines] == [
            row["institution"] for row in rows if row["column"] == plot.title.partition(" (")[0]
        ]
        for line in plot.lines:
            middle, low, high = map(plot.at, line.estimate)
            assert low < middle < high
            assert np.isnan(line.own) == line.is_mean == line.name.startswith("group")
            assert f"<title>{line.name}: {line.number}</title>" in page
            assert re.search(r"odds ratio [\d.e+-]+, 95 %", line.number)


def test_other_runs_have_no_such_section(tmp_path: Path) -> None:
    done = run(tmp_path, hospitals(), method="local")
    assert coefficients.of_run(Run.read(done.directory)) is None
