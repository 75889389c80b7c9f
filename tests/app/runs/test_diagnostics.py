"""Diagnostics of a run: from its predictions to cards, CSV and pages."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, roc_auc_score

import coterie
from coterie.app.config.config import Config
from coterie.app.experiments.table import Table
from coterie.app.report import diagnostics as tables
from coterie.app.report.comparison import Comparison
from coterie.app.report.run_page import write
from coterie.app.runs import diagnostics
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run as Results
from coterie.app.trained.personal import personal_model
from coterie.app.trained.predict import predicted
from coterie.clients.diagnostics import youden
from coterie.datasets.table import dataset_of

FLAT: dict[str, Any] = {
    "dataset": "heart-disease", "peers": 4, "partition.kind": "natural",
    "partition.samples-per-peer": 0, "partition.validation": 0.2, "method": "fedavg-ft",
    "num-server-rounds": 4, "device": "cpu",
}  # fmt: skip


def run(flat: dict[str, Any], out: Path) -> Results:
    return Results.read(coterie.run(None, flat | {"out": str(out), "name": "run"}).directory)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(FLAT, tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_they_are_measured_on_the_test_examples_of_the_saved_model(done: Results) -> None:
    config = Config.from_flat(FLAT)
    problem = dataset_of("heart-disease").load(config.partition, 4, config.seed, Path("data"), None)
    result = diagnostics.read(done)
    assert list(result) == [0, 1, 2, 3]
    for peer, each in result.items():
        raw, labels = problem.inputs[problem.test.rows[peer]], problem.test.targets[peer]
        p = predicted(personal_model(done.directory, peer), raw)[:, 1]
        assert (each.examples, each.positives) == (len(labels), labels.sum())
        assert each.measures["brier"][0] == pytest.approx(brier_score_loss(labels, p), abs=1e-6)
        if len(set(labels)) == 2:
            assert each.measures["auroc"][0] == pytest.approx(roc_auc_score(labels, p), abs=1e-6)
        last = done.at("sensitivity", done.last_row())[peer]
        assert each.measures["sensitivity"][0] == pytest.approx(last)


def test_the_threshold_comes_from_the_validation_examples(done: Results) -> None:
    config = Config.from_flat(FLAT)
    problem = dataset_of("heart-disease").load(config.partition, 4, config.seed, Path("data"), None)
    chosen = {peer: each.threshold for peer, each in diagnostics.read(done).items()}
    for peer in range(4):
        rows, labels = problem.validation.rows[peer], problem.validation.targets[peer]
        if len(set(labels)) < 2:
            assert chosen[peer] is None
            continue
        p = predicted(personal_model(done.directory, peer), problem.inputs[rows])[:, 1]
        assert chosen[peer] == pytest.approx(youden(p, labels == 1), abs=1e-6)
    assert any(chosen.values())


def test_the_csv_has_every_number(done: Results) -> None:
    with (done.directory / diagnostics.FILE).open(newline="") as file:
        lines = [*csv.DictReader(file)]
    result = diagnostics.read(done)
    for peer, each in result.items():
        own = [line for line in lines if line["peer"] == str(peer)]
        at_half = {line["measure"]: line for line in own if line["threshold"] in ("0.5", "")}
        for name, (value, _, high) in each.measures.items():
            assert at_half[name]["value"] == ("" if np.isnan(value) else repr(value))
            assert at_half[name]["high"] == ("" if np.isnan(high) else repr(high))
        assert len(own) == sum(map(len, (each.measures, each.at_threshold, each.recalibrated)))


def test_metrics_have_no_new_numbers(done: Results) -> None:
    """Intervals, predictive values and thresholds are in the cards alone, which stay here."""
    line = json.loads((done.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert not {"ppv", "npv", "auprc", "brier", "threshold", "temperature"} & line.keys()


def test_the_page_shows_them(done: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.of_run(done)
    assert table is not None
    assert "positive: ill" in table.about[0]
    assert [name for name, _ in table.rows] == list(done.names)
    titles = [column.title for column in table.columns[1:]]
    switzerland = dict(zip(titles, table.rows[2][1], strict=True))
    assert switzerland["Specificity"].text == "–", "all its test patients are ill"
    chosen = tables.at_thresholds(done)
    assert chosen is not None
    known = [done.names[peer] for peer, of in done.diagnostics.items() if of.threshold is not None]
    assert [name for name, _ in chosen.rows] == known
    monkeypatch.setattr(tables, "SHOWN", 1)
    panels = (tables.of_run(done), 4), (tables.at_thresholds(done), len(known))
    for panel, count in panels:
        assert panel is not None
        assert len(panel.rows) == 1
        assert panel.about[0].endswith(f"The table has 1 of {count} peers.")
    write(done.directory)
    text = (done.directory / "report.html").read_text()
    assert 'id="diagnostics"' in text
    assert 'id="thresholds"' in text


@pytest.mark.slow
def test_a_comparison_averages_over_seeds(done: Results, tmp_path: Path) -> None:
    other = run(FLAT | {"seed": 1}, tmp_path)
    table = tables.compared(Comparison(Table.of_runs({"fedavg-ft": [done, other]}, {})))
    assert table is not None
    assert [(name, cells[0].text) for name, cells in table.rows] == [
        (name, "fedavg-ft") for name in ("cleveland", "hungarian", "va")
    ], "Switzerland has too few test rows"
    assert table.about[0].endswith("Left out: switzerland (fewer than 20 test rows).")
    values = [each.diagnostics[0].measures["auroc"][0] for each in (done, other)]
    titles = [column.title for column in table.columns[1:]]
    assert table.rows[0][1][titles.index("AUROC")].text == f"{np.mean(values):.2f}"
    lines = table.files()[tables.FILE].splitlines()
    assert len(lines) == 1 + sum(len([*diagnostics.rows(each)]) for each in (done, other))


def test_other_problems_have_none(tmp_path: Path) -> None:
    flat = {"num-server-rounds": 1, "peers": 2, "device": "cpu", "partition.kind": "iid"}
    digits = run(flat, tmp_path)
    assert diagnostics.read(digits) == {}
    assert tables.of_run(digits) is None
    assert not (digits.directory / diagnostics.FILE).exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"examples": True}, {"positives": -1}, {"measures": []}, {"measures": {"auroc": [1, 2]}},
        {"measures": {"<b>": [1, 1, 1]}}, {"threshold": "0.5"},
        {"measures": {"auroc": [1, float("inf"), 1]}},
    ],
)  # fmt: skip
def test_a_damaged_card_is_named(damage: dict[str, Any], done: Results) -> None:
    card = done.directory / "models" / "peer-0001.json"
    sound = card.read_text()
    broken = json.loads(sound)
    broken["diagnostics"] |= damage
    card.write_text(json.dumps(broken))
    try:
        with pytest.raises(ResultsError, match=r"peer-0001\.json: diagnostics"):
            diagnostics.read(done)
    finally:
        card.write_text(sound)
