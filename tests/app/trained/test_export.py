"""Exported models of tables take columns by name and describe themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

import coterie
from coterie.app.config.keys import ConfigError
from coterie.app.trained.export import METADATA, export
from coterie.app.trained.inputs import read
from coterie.app.trained.personal import personal_model
from coterie.app.trained.predict import predicted
from coterie.datasets.own.schema import digest, read_schema
from tests.hospitals import TABLE, write_hospitals
from tests.inline import run

PEER = "south"
NAN = float("nan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, run and exports of three hospitals, whose order of columns is alphabetical."""
    folder = tmp_path_factory.mktemp("hospitals")
    write_hospitals(folder / "data")
    flat = TABLE | {"data-dir": str(folder / "data"), "table.columns": "all"}
    run(flat, folder / "run")
    for kind in ("onnx", "pt2"):
        export(personal_model(folder / "run", PEER), folder / f"model.{kind}")
    return folder


def predictions(folder: Path) -> np.ndarray:
    """Return the predictions of `coterie predict` for the hospital's test rows, gaps included."""
    model = personal_model(folder / "run", PEER)
    return predicted(model, read(folder / "data" / PEER / "test.csv", model.about).raw)


def cells(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "data" / PEER / "test.csv").drop(columns="readmitted")


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("order", [["glucose", "sex", "age"], ["age", "sex", "glucose"]])
def test_onnx_takes_columns_in_any_order(folder: Path, order: list[str]) -> None:
    table = cells(folder)[order]
    assert table.glucose.isna().any()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["age", "glucose", "sex"]
    feed = {name: table[name].to_numpy() for name in table}
    there = session.run(["probabilities"], feed)[0]
    assert there == pytest.approx(predictions(folder), abs=1e-6)
    scores = session.run(["scores"], feed)[0]
    assert np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) == pytest.approx(there)


@pytest.mark.slow
@pytest.mark.parametrize("order", [["glucose", "sex", "age"], ["age", "sex", "glucose"]])
def test_pt2_takes_columns_in_any_order(folder: Path, order: list[str]) -> None:
    table = cells(folder)[order]
    table["sex"] = table["sex"].map({"f": 0.0, "m": 1.0})
    module = torch.export.load(folder / "model.pt2").module()
    scores = module({name: torch.tensor(table[name].to_numpy()) for name in table})
    assert scores.softmax(dim=1).numpy() == pytest.approx(predictions(folder), abs=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
def test_any_number_of_rows(folder: Path, rows: int) -> None:
    table = cells(folder)[:rows]
    feed: dict[str, Any] = {name: table[name].to_numpy() for name in ("age", "glucose")}
    feed["sex"] = table["sex"].to_numpy(dtype=object)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    there = session.run(["probabilities"], feed)[0]
    assert there == pytest.approx(predictions(folder)[:rows], abs=1e-6)
    feed["sex"] = np.zeros(rows)
    scores = torch.export.load(folder / "model.pt2").module()(
        {name: torch.tensor(values) for name, values in feed.items()}
    )
    assert scores.shape == (rows, 2)


@pytest.mark.slow
def test_marks_of_missing_cells_are_missing_cells(folder: Path, tmp_path: Path) -> None:
    marks = {"table.na-values": "?, age=-9", "data-dir": str(folder / "data")}
    run(TABLE | {"table.columns": "all"} | marks, tmp_path / "run")
    export(personal_model(tmp_path / "run", PEER), tmp_path / "model.onnx")
    feed = {"age": [-9.0, NAN], "glucose": [5.5, 5.5], "sex": np.array(["?", ""], dtype=object)}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    marked, missing = session.run(["probabilities"], feed)[0]
    assert np.isfinite(missing).all()
    assert marked.tolist() == missing.tolist()


def test_a_missing_column_is_an_error(folder: Path) -> None:
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    feed = {"age": np.array([50.0]), "sex": np.array(["f"])}
    with pytest.raises(ValueError, match="glucose"):
        session.run(None, feed)
    module = torch.export.load(folder / "model.pt2").module()
    with pytest.raises(ValueError, match="glucose"):
        module({"age": torch.zeros(1).double(), "sex": torch.zeros(1).double()})


def test_cells_against_the_schema_make_their_row_nan(folder: Path) -> None:
    """`coterie predict` refuses them; an exported model cannot, but must not go on as if missing.

    The schema: age 0 to 120, sex f or m, glucose any finite number.
    """
    age = np.array([50, 120, 120.5, -1, NAN, 50, 50, 50])
    glucose = np.array([5, 5, 5, 5, 5, 5, 5, float("inf")])
    sex = np.array(["f", "m", "m", "m", "", "F", "x", "m"])
    sound = [True, True, False, False, True, False, False, False]
    feed = {"age": age, "glucose": glucose, "sex": sex}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for values in session.run(None, feed):
        assert np.isnan(values).any(axis=1).tolist() == [not each for each in sound]
    module = torch.export.load(folder / "model.pt2").module()
    codes = torch.tensor([0, 1, 1, 1, NAN, 2, 0.5, 1], dtype=torch.float64)
    scores = module({"age": torch.tensor(age), "glucose": torch.tensor(glucose), "sex": codes})
    assert scores.isnan().any(dim=1).tolist() == [not each for each in sound]


def test_exports_describe_columns_classes_and_preprocessing(folder: Path) -> None:
    extra = {METADATA: ""}
    torch.export.load(folder / "model.pt2", extra_files=extra)
    known = json.loads(extra[METADATA])
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    of_onnx = dict(session.get_modelmeta().custom_metadata_map)
    for name, value in known.items():
        assert of_onnx[name] == value if isinstance(value, str) else json.loads(of_onnx[name])
    assert known["version"] == coterie.__version__
    assert known["classes"] == ["no", "yes"]
    assert [column["name"] for column in known["columns"]] == ["age", "glucose", "sex"]
    age, glucose, sex = known["columns"]
    assert (age["low"], age["high"], glucose["unit"]) == (0, 120, "mmol/l")
    assert sex["categories"] == ["f", "m"]
    assert known["schema"] == digest(read_schema(folder / "data"))
    # The steps that the docstring of `Preprocessing` defines, from the file alone.
    steps = known["normalisation"]["preprocessing"]
    raw = pd.concat(map(pd.read_csv, (folder / "data").glob("*/train.csv")))
    assert steps["fill"][:2] == pytest.approx(raw[["age", "glucose"]].mean().tolist())
    assert steps["std"][1] == pytest.approx(raw["glucose"].std(ddof=0))


@pytest.mark.slow
def test_column_names_do_not_collide_with_names_in_the_graph(tmp_path: Path) -> None:
    """Names of the exporter's own: a value, a parameter, an input; and names that need quotes."""
    names = ["linear", "model.weights", "raw", "0:code", "blood pressure, mmHg", "é"]
    g = np.random.default_rng(0)
    for peer in "ab":
        (tmp_path / "data" / peer).mkdir(parents=True)
        table = pd.DataFrame(g.normal(size=(20, len(names))), columns=names)
        table["y"] = table["linear"] - 2 * table["raw"]
        table.to_parquet(tmp_path / "data" / peer / "data.parquet")
    flat: dict[str, Any] = {
        "dataset": "table", "peers": 2, "table.columns": "all", "table.label": "y", "device": "cpu",
        "model": "linear", "method": "fedavg", "num-server-rounds": 2,
        "data-dir": str(tmp_path / "data"),
    }  # fmt: skip
    run(flat, tmp_path / "run")
    model = personal_model(tmp_path / "run", 0)
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert {each.name for each in session.get_inputs()} == set(names)
    there = session.run(["scores"], {name: table[name].to_numpy() for name in names})[0]
    here = predicted(model, table[list(model.about.columns)].to_numpy())
    assert there == pytest.approx(here, abs=1e-5)


def test_a_column_with_the_name_of_an_output_is_refused(tmp_path: Path) -> None:
    for peer in "ab":
        (tmp_path / "data" / peer).mkdir(parents=True)
        table = pd.DataFrame({"scores": range(20), "label": range(20)})
        table.to_parquet(tmp_path / "data" / peer / "data.parquet")
    flat: dict[str, Any] = {
        "dataset": "table", "peers": 2, "table.columns": "scores", "model": "linear",
        "method": "fedavg", "num-server-rounds": 1, "data-dir": str(tmp_path / "data"),
        "device": "cpu", "learning-rate": 0.001,
    }  # fmt: skip
    run(flat, tmp_path / "run")
    model = personal_model(tmp_path / "run", 0)
    with pytest.raises(ConfigError, match="scores is the name of an output"):
        export(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    export(model, tmp_path / "model.pt2")
