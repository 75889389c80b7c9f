"""Tables with a time and an event: intervals, censoring, and tables that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.config.registry import METHODS
from coterie.app.institution.security.disclosure import protected
from coterie.app.institution.security.policy import ReportPolicy
from coterie.clients.engine.tasks import TASKS
from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.own.schema import described, digest, read_schema
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.problem import DataError
from coterie.datasets.table import DATASETS
from coterie.strategies.protocol import Report
from tests.output import csv_rows
from tests.problems import write_lifetimes

OPTIONS = TableOptions(columns="all", label="days", event="died", schema="file", test=0.2)
SCHEMA = """
[columns.age]
[columns.days]
cuts = [10, 20.5, 30]
[columns.died]
kind = "category"
categories = ["no", "yes"]
"""
ROWS = ["60,0,no", "61,9.9,yes", "62,10,yes", "63,20.5,no", "64,30,yes", "65,400,no"]


def write(folder: Path, rows: list[str], schema: str = SCHEMA) -> Path:
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("\n".join(["age,days,died", *rows, ""]))
    (folder / "schema.toml").write_text(schema)
    return folder


def test_an_interval_contains_its_start_and_not_its_end(tmp_path: Path) -> None:
    expected, held = read_table(write(tmp_path, ROWS), OPTIONS, 0, 0)
    assert (expected.task, expected.outputs) == ("survival", 3)
    assert expected.classes == ("10", "20.5", "30")
    assert [column.name for column in expected.columns] == ["age"]
    assert held.targets[held.rows["train"]].tolist() == [
        [0, 0, 0], [0, 1, 9.9], [1, 1, 10], [2, 0, 20.5], [3, 1, 30], [3, 0, 400],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("60,-3,no", "days -3 is negative"),
        ("60,,no", "days is missing"),
        ("60,5,", "died is missing"),
        ("60,5,2", "died '2' is not a category"),
        ("60,soon,yes", "days 'soon' is not a number"),
    ],
)
def test_a_row_without_a_sound_time_and_event_is_named(
    tmp_path: Path, row: str, message: str
) -> None:
    with pytest.raises(RefusedError, match=r"1 of 7 rows of train\.csv cannot") as refused:
        read_table(write(tmp_path, [*ROWS, row]), OPTIONS, 0, 0)
    assert len(refused.value.entries) == 1
    assert refused.value.entries[0].startswith("train.csv, line 8: ")
    assert message in refused.value.entries[0]


def test_an_event_of_numbers_is_0_or_1(tmp_path: Path) -> None:
    schema = SCHEMA.partition("kind")[0]
    rows = [row.replace("no", "0").replace("yes", "1.0") for row in ROWS]
    _, held = read_table(write(tmp_path, rows, schema), OPTIONS, 0, 0)
    assert held.targets[held.rows["train"], 1].tolist() == [0, 1, 1, 0, 1, 0]
    with pytest.raises(RefusedError) as refused:
        read_table(write(tmp_path, [*rows, "60,5,2"], schema), OPTIONS, 0, 0)
    assert refused.value.entries == ["train.csv, line 8: died 2 is not 0 or 1"]


@pytest.mark.parametrize("cuts", ["[]", "[0, 5]", "[5, 5]", "[9, 5]", '["5"]', "[1, inf]", "5"])
def test_cuts_ascend_from_0(tmp_path: Path, cuts: str) -> None:
    folder = write(tmp_path, ROWS, SCHEMA.replace("[10, 20.5, 30]", cuts))
    with pytest.raises(DataError, match=r"cuts") as refused:
        read_table(folder, OPTIONS, 0, 0)
    assert "days" in str(refused.value)


def test_cuts_are_part_of_the_schema_that_institutions_compare(tmp_path: Path) -> None:
    schema = read_schema(write(tmp_path, ROWS))
    other = read_schema(write(tmp_path, ROWS, SCHEMA.replace("20.5", "21")))
    without = read_schema(write(tmp_path, ROWS, SCHEMA.replace("cuts = [10, 20.5, 30]", "")))
    assert len({digest(schema), digest(other), digest(without)}) == 3
    assert described(schema)["columns"]["days"]["cuts"] == [10, 20.5, 30]
    assert "cuts" not in described(without)["columns"]["days"]


def test_options_that_are_not_survivals_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"schema": ""}, {"classes": "a, b"}, {"label": "died"}]
    for keys in wrong:
        with pytest.raises(ValueError, match="event is for survival"):
            replace(OPTIONS, **keys).check_peers(2)
    with pytest.raises(ValueError, match="without label and event"):
        TableOptions(columns="age, died", event="died", schema="file").check_peers(2)


@pytest.mark.slow
def test_from_tables_to_risks_of_new_patients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Patients with a higher true risk are given a higher one, by each hospital's own model."""
    keys = write_lifetimes(tmp_path / "data", 200) | {"out": str(tmp_path / "runs")}
    run = coterie.run(None, keys)
    last = run.metrics[run.metrics["round"] == run.metrics["round"].max()]
    assert (last["c_index"] > 0.55).all()
    assert run.summary["measures"]["c_index"] == pytest.approx(last["c_index"].mean())
    rows = csv_rows(run.directory / "diagnostics.csv")
    assert [row["measure"] for row in rows] == ["c_index"] * 3
    for row, value in zip(rows, last["c_index"], strict=True):
        assert float(row["low"]) < float(row["value"]) == value < float(row["high"])
    page = (run.directory / "report.html").read_text("utf-8")
    assert "C-index (Harrell)" in page
    assert "## Survival" in (run.directory / "models" / "peer-0001.md").read_text("utf-8")

    new = tmp_path / "new.csv"
    new.write_text("id,marker\na,-2\nb,0\nc,2\n")
    exported, out = tmp_path / "model.onnx", tmp_path / "risks.csv"
    command = ["predict", str(run.directory), "--peer", "1", str(new), "--out", str(out)]
    assert main(command) == 0
    patients = csv_rows(out)
    assert list(patients[0]) == ["id", "marker", "risk", "survival_1", "survival_2", "survival_4"]
    risks = [float(patient["risk"]) for patient in patients]
    assert risks == sorted(risks)
    for patient in patients:
        survival = [float(patient[f"survival_{cut}"]) for cut in (1, 2, 4)]
        assert 1 >= survival[0] >= survival[1] >= survival[2] >= 0
        assert float(patient["risk"]) == pytest.approx(1 - np.mean(survival))
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run.directory), "--peer", "1", str(exported)]) == 0
    session = onnxruntime.InferenceSession(exported)
    (probabilities,) = session.run(["probabilities"], {"marker": np.array([-2.0, 0, 2])})
    expected = [[float(patient[f"survival_{cut}"]) for cut in (1, 2, 4)] for patient in patients]
    assert np.allclose(probabilities, expected, atol=1e-5)


def test_the_relay_is_told_a_c_index_of_enough_events_only(tmp_path: Path) -> None:
    """A report is rounded by the number of test examples with an event, or omits the measure."""
    config = Config.from_flat(write_lifetimes(tmp_path / "data"))
    problem = problem_of(config)
    events = problem.test.targets[0][:, 1].sum()
    assert 0 < problem.rarest_class(0) == events < len(problem.test.rows[0])
    report = Report(4, 0, {"c_index": 0.7234}, (1.0, 0.0, 0.0))
    sizes = {"train": 30, "validation": 12, "test": 18}
    assert protected(report, ReportPolicy(), sizes, 0).metrics["c_index"] is None
    assert protected(report, ReportPolicy(), sizes, 9).metrics["c_index"] == 0.7


def test_a_deployed_node_reads_its_own_table_by_the_digest_of_the_cuts(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_lifetimes(folder)
    shared = digest(read_schema(folder / "b-south"))
    options = TableOptions(columns="marker", label="time", event="event", schema=shared)
    load = DATASETS["table"].deployed
    assert load is not None
    problem = load(1, 3, 0, folder / "b-south", options)
    assert (problem.task, problem.classes) == ("survival", ("1", "2", "4"))
    assert [len(rows) for rows in problem.train.rows] == [0, 48, 0]
    schema = (folder / "schema.toml").read_text()
    (folder / "schema.toml").write_text(schema.replace("4]", "5]"))
    with pytest.raises(DataError, match="does not have the digest"):
        load(1, 3, 0, folder / "b-south", replace(options, test=0.3))


def test_a_comparison_has_the_c_index_of_each_hospital(tmp_path: Path) -> None:
    keys = write_lifetimes(tmp_path / "data")
    out = tmp_path / "runs"
    result = coterie.compare(["local", "fedavg"], None, keys, seeds=2, out=out)
    page = (result.directory / "comparison.html").read_text("utf-8")
    assert "Survival by peer" in page
    assert result.table["c_index"]["mean"].between(0.4, 1).all()
    assert len(csv_rows(result.directory / "comparison-diagnostics.csv")) == 2 * 2 * 3


def run_of(method: str, folder: Path, **keys: Any) -> coterie.Run:
    needs = {"ifca": {"ifca.clusters": 2}, "federico": {"federico.neighbours": 1}}
    problem = write_lifetimes(folder / "data") | {"num-server-rounds": 1, "out": str(folder)}
    return coterie.run(None, problem | needs.get(method, {}) | keys | {"method": method})


@pytest.mark.some(5)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_survival(tmp_path: Path, method: str) -> None:
    refused = {"oracle": "clusters", "boosting": 'set model = "boosted-trees"'} | dict.fromkeys(
        ("fedpac", "fedproto"), "one class per example"
    )
    if why := refused.get(method):
        with pytest.raises(coterie.Error, match=why):
            run_of(method, tmp_path, model="mlp")
        return
    run = run_of(method, tmp_path)
    first, last = (run.metrics[run.metrics["round"] == t] for t in (0, 1))
    assert (last["train_loss"] < first["train_loss"].to_numpy()).mean() > 0.6
    assert last["c_index"].notna().all()
    for peer in range(3):
        survival = run.predict(peer, np.array([[-1.0], [1.0]]))
        assert (np.diff(survival, axis=1) <= 0).all()
        scores = run.model(peer)(torch.tensor([[-1.0], [1.0]]))
        assert np.allclose(TASKS["survival"].predict(scores), survival, atol=1e-6)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["batched", "vmapped"])
@pytest.mark.parametrize("privacy", ["none", "examples"])
def test_backends_and_clipped_gradients_agree(tmp_path: Path, backend: str, privacy: str) -> None:
    keys = {
        "privacy.kind": privacy,
        "privacy.noise": 1.0,
        "privacy.clip": 0.5,
        "table.scale": "own",
    }
    one, other = (
        run_of("fedavg", tmp_path / name, **keys, **{"engine.backend": name}).metrics
        for name in ("sequential", backend)
    )
    for name in ("test_loss", "c_index"):
        assert np.allclose(one[name], other[name], rtol=1e-5, equal_nan=True)
