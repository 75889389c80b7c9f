"""A model fills missing cells of new rows as in training, whatever their marks."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

import coterie
from coterie.app.cli.main import main
from coterie.app.config.config import Config, ConfigError
from coterie.app.trained.export import export
from coterie.app.trained.personal import personal_model
from tests.datasets.own.test_schema import NA_SCHEMA
from tests.inline import run

HEADER = "age,chol,sex,ill"


def fill(folder: Path) -> Path:
    g = np.random.default_rng(0)
    for name in ("north", "south"):
        (folder / name).mkdir(parents=True)
        rows = [HEADER]
        for k in range(40):
            age = "?" if k % 9 == 0 else f"{g.normal(60, 12):.1f}"
            chol = "0" if k % 4 == 0 else f"{g.normal(230, 30):.0f}"
            sex = "-9" if k % 7 == 0 else "fm"[k % 2]
            rows.append(f"{age},{chol},{sex},{('no', 'yes')[int(g.integers(2))]}")
        (folder / name / "data.csv").write_text("\n".join(rows) + "\n")
    (folder / "schema.toml").write_text(NA_SCHEMA)
    return folder


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_marks_of_missing_cells_predict_like_empty_cells(missing: str, tmp_path: Path) -> None:
    data = fill(tmp_path / "data")
    done = run(
        {
            "dataset": "table", "data-dir": str(data), "table.columns": "age, chol, sex",
            "table.label": "ill", "table.schema": "file", "table.na-values": "?, -9",
            "table.missing": missing, "peers": 2, "method": "fedavg", "model": "linear",
            "num-server-rounds": 2, "device": "cpu", "learning-rate": 0.5,
        },
        tmp_path / "run",
    )  # fmt: skip
    marked, empty = tmp_path / "marked.csv", tmp_path / "empty.csv"
    marked.write_text("age,chol,sex\n?,233,f\n61,0,m\n-9.0,0.0,-9\n50,200,?\n")
    empty.write_text("age,chol,sex\n,233,f\n61,,m\n,,\n50,200,\n")
    shares = []
    for table in (marked, empty):
        out = table.with_suffix(".out")
        command = ["predict", str(done.directory), "--peer", "north", str(table)]
        assert main([*command, "--out", str(out)]) == 0
        rows = csv.DictReader(out.read_text().splitlines())
        shares.append([{k: v for k, v in row.items() if k.startswith("p")} for row in rows])
    assert shares[0] == shares[1]
    assert shares[0][0], "predictions"

    # Codes in raw numbers, as an exported model gets them.
    model = personal_model(done.directory, "north")
    fitted = model.about.preprocessing
    assert fitted is not None
    raw = np.array([[-9.0, 233, 0], [61, 0, 1], [np.nan, 0, np.nan], [50, 200, np.nan]])
    cleared = np.array([[np.nan, 233, 0], [61, np.nan, 1], [np.nan] * 3, [50, 200, np.nan]])
    assert np.array_equal(fitted.apply(raw), fitted.apply(cleared))
    scores = [model(torch.from_numpy(rows)) for rows in (raw, cleared)]
    assert torch.equal(*scores)
    own = torch.from_numpy(fitted.apply(raw))
    inputs = model.preparation(torch.from_numpy(raw))
    assert torch.equal(inputs, own), "the same numbers as in training"
    # An exported file takes them, too.
    assert main(["export", str(done.directory), "--peer", "north", str(tmp_path / "m.pt2")]) == 0


def test_no_private_model_holds_the_median_of_a_column() -> None:
    keys: dict[str, Any] = {
        "dataset": "table", "table.columns": "a", "table.label": "y", "privacy.kind": "examples",
    }  # fmt: skip
    with pytest.raises(ConfigError, match='set it to "mean" or "indicator"'):
        Config.from_flat({**keys, "table.missing": "median"})
    Config.from_flat({**keys, "table.missing": "mean"})


def test_a_model_of_whole_rows_predicts_whole_rows_only(tmp_path: Path) -> None:
    """Trained with table.missing = "refuse": predict names the cell, an export answers NaN."""
    rows = "".join(f"{k % 9},{'fm'[k % 2]},{('no', 'yes')[k % 3 > 1]}\n" for k in range(40))
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "data.csv").write_text(f"chol,sex,ill\n{rows}")
    (tmp_path / "data" / "schema.toml").write_text(NA_SCHEMA.replace('["0"]', '["-9"]'))
    keys: dict[str, Any] = {"columns": "chol, sex", "label": "ill", "schema": "file"}
    done = coterie.run(
        method="local", dataset="table", data_dir=str(tmp_path / "data"), peers=1, model="linear",
        num_server_rounds=1, table=keys, out=tmp_path / "runs", name="x",
    )  # fmt: skip
    sound = pd.DataFrame({"chol": [1.0], "sex": ["f"]})
    assert done.predict(0, sound).shape == (1, 2)
    model = personal_model(done.directory, 0)
    export(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for chol, sex, why in (
        (np.nan, "f", "chol is missing"), (-9.0, "f", "chol is missing"), (1.0, None, "sex is"),
        (1.0, "NA", "sex 'NA' is missing"), (np.inf, "f", "chol inf is infinite"),
        (1.0, "F", "sex 'F' is not a category"),
    ):  # fmt: skip
        with pytest.raises(coterie.Error, match=f"the data frame, row 1: {why}"):
            done.predict(0, pd.DataFrame({"chol": [chol], "sex": [sex]}))
        feed = {"chol": np.array([chol]), "sex": np.array([sex or ""], dtype=object)}
        assert np.isnan(session.run(["probabilities"], feed)[0]).all()
    with pytest.raises(coterie.Error, match="have NaN or infinity"):
        done.predict(0, np.array([[np.nan, 0.0]]))
