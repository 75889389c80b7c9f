"""Institutions that cannot be judged, from a run on tables."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

import coterie
from coterie.app.cli.main import main
from coterie.app.report.decisions import of_run
from coterie.app.runs import quality
from coterie.app.runs.header import data_quality
from coterie.app.runs.rundir import Run
from coterie.datasets.own.tabular import TableOptions
from coterie.datasets.partition.options import Partition
from coterie.datasets.table import dataset_of

FINDING = "one class only (ill): accuracy is trivially 100 %"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two hospitals of 100 and 12 patients, and a third where all are ill."""
    folder = tmp_path_factory.mktemp("wards")
    for name, labels in (
        ("a", ["ill", "well"] * 50),
        ("b", ["ill", "well"] * 6),
        ("c", ["ill"] * 100),
    ):
        (folder / "data" / name).mkdir(parents=True)
        rows = [f"{k % 7},{label}" for k, label in enumerate(labels)]
        (folder / "data" / name / "data.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    table = {"columns": "x", "label": "y", "classes": "well, ill", "test": 0.4}
    done = coterie.run(
        method="local", num_server_rounds=1, dataset="table", data_dir=str(folder / "data"),
        peers=3, model="linear", table=table, out=str(folder), name="run", device="cpu",
    )  # fmt: skip
    return Run.read(done.directory)


def test_few_rows_and_one_class_are_no_numbers_to_judge_by(done: Run) -> None:
    assert quality.too_few_rows(done) == {1: "fewer than 20 test rows", 2: "one class only"}
    assert quality.enough_rows(done).tolist() == [True, False, False]
    assert quality.one_class(done) == {2: FINDING}
    decided = of_run(done)
    assert decided is not None
    first, *others = decided.lines()
    assert others == [
        "b: not known; only 5 of its 5 rows of the rarer class are tested in some seed; 20 would "
        "decide.",
        f"c: not known; {FINDING}; rows of another class would decide.",
    ]
    command = str(first).partition("rows: coterie ")[2]
    assert main([*shlex.split(command), "--seeds", "1", f"out={done.directory.parent}"]) == 0


def test_one_class_is_said_before_training_and_in_the_card(done: Run) -> None:
    options = TableOptions(columns="x", label="y", classes="well, ill", test=0.4)
    data = Path(str(done.config["data-dir"]))
    problem = dataset_of("table").load(Partition(), 3, 0, data, options)
    console = Console(file=io.StringIO(), width=200)
    data_quality(problem, console)
    assert isinstance(console.file, io.StringIO)
    assert f"c: {FINDING}\n" in console.file.getvalue()
    models = done.directory / "models"
    assert json.loads((models / "peer-0002.json").read_text())["finding"] == FINDING
    assert FINDING in (models / "peer-0002.md").read_text()
    assert "finding" not in json.loads((models / "peer-0000.json").read_text())
