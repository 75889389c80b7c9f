"""Partial pooling in whole runs: letters, rare columns, frozen networks, what a peer keeps."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import coterie
from coterie.app.trained.personal import load
from coterie.app.trained.predict import intervals, predicted
from tests.hospitals import TABLE, write_hospitals
from tests.inprocess import simulate

KEYS: dict[str, Any] = {
    "method": "partial-pooling", "model": "linear", "num-server-rounds": 1, "evaluate-every": 1,
    "partial-pooling.min-rows": 1,
}  # fmt: skip
COLUMNS = 3


def hospitals(kind: str = "classes", n: int = 6, rows: int = 120) -> list[dict[str, Any]]:
    """Return rows of institutions in two groups, with intercepts of their own."""
    g = np.random.default_rng(0)
    slopes = np.array([[1.5, -1.0, 0.5], [-1.0, 1.5, 1.0]])
    data = []
    for i in range(n):
        x = g.normal(size=(rows, COLUMNS))
        eta = x @ slopes[i % 2] + i / n
        y = (
            g.random(rows) < 1 / (1 + np.exp(-eta))
            if kind == "classes"
            else eta + g.normal(size=rows)
        )
        y = y.astype(np.int64 if kind == "classes" else np.float32)
        data.append({"x": x.astype(np.float32), "y": y if kind == "classes" else y[:, None]})
    return data


def run(tmp_path: Path, data: list[dict[str, Any]], **more: Any) -> Any:
    return coterie.run(None, {**KEYS, "out": str(tmp_path), **more}, peers_data=data)


def known(run_: Any, peer: int = 0) -> dict[str, Any]:
    tensors = load_file(run_.directory / f"models/peer-{peer:04d}.safetensors")
    return {k.removeprefix("effects."): v for k, v in tensors.items() if k.startswith("effects.")}


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_groups_are_found_from_one_letter(tmp_path: Path, kind: str) -> None:
    result = run(tmp_path, hospitals(kind))
    groups = known(result)["groups"]
    assert (groups[::2] == groups[0]).all()
    assert (groups[1::2] == 1 - groups[0]).all()
    rows = list(csv.DictReader((result.directory / "coefficients.csv").read_text().splitlines()))
    assert len(rows) == (6 + 2) * (1 + COLUMNS)
    assert {row["institution"] for row in rows} >= {"peer 0", "group 1", "group 2"}
    first = next(row for row in rows if row["column"] == "input 1")
    assert float(first["low"]) < float(first["estimate"]) < float(first["high"])
    assert 1.0 < float(first["estimate"]) < 2.0  # the slope is 1.5, in the unit of the values


def test_each_node_writes_the_same_table(tmp_path: Path) -> None:
    write_hospitals(tmp_path / "data")
    texts = []
    for nodes in (1, 3):
        keys = TABLE | KEYS | {"data-dir": str(tmp_path / "data"), "out": str(tmp_path)}
        simulate(keys | {"run-dir": str(tmp_path / str(nodes))}, nodes)
        texts.append((tmp_path / str(nodes) / "coefficients.csv").read_text("utf-8"))
    assert texts[0] == texts[1]
    rows = list(csv.DictReader(texts[0].splitlines()))
    of = {row["column"]: row for row in rows if row["institution"] == "west"}
    assert of.keys() >= {"intercept", "age", "sex = m", "glucose"}
    assert float(of["age"]["step"]) > 5  # years of a standard deviation
    assert float(of["sex = m"]["step"]) == 1


def test_a_rare_category_is_not_in_a_letter(tmp_path: Path) -> None:
    """A column in which fewer rows differ leaves the letters as if it were constant."""
    data = hospitals()
    for each in data:
        each["x"][:, 2] = 0.0
    constant = run(tmp_path / "constant", data, **{"partial-pooling.min-rows": 10})
    for each in data:
        each["x"][:4, 2] = 1.0
    with pytest.warns(UserWarning, match="1 of 3 columns"):
        rare = run(tmp_path / "rare", data, **{"partial-pooling.min-rows": 10})
    shown = run(tmp_path / "shown", data)
    own = [known(each)["own"] for each in (constant, rare, shown)]
    assert np.array_equal(own[0], own[1])
    assert abs(own[2] - own[1]).max() > 0.01


def test_the_last_layer_of_a_frozen_network_is_a_linear_model(tmp_path: Path) -> None:
    result = run(tmp_path, hospitals(), model="mlp", **{"model.frozen": "body"})
    assert known(result)["estimates"].shape[0] == 6
    with pytest.raises(coterie.Error, match="linear in its parameters"):
        run(tmp_path, hospitals(), model="mlp")
    with pytest.raises(coterie.Error, match="one linear layer"):
        run(tmp_path, hospitals(), model="mlp", **{"model.frozen": "head"})


def test_too_many_parameters_are_refused(tmp_path: Path) -> None:
    data = [{"x": np.zeros((20, 1200), dtype=np.float32), "y": np.arange(20) % 2}] * 2
    with pytest.raises(coterie.Error, match="1201 parameters are more than 1000"):
        run(tmp_path, data)


def test_intervals_of_values_cover_new_values(tmp_path: Path) -> None:
    """95 % intervals contain about 95 % of new values, from the law that made the rows."""
    data = hospitals("values", rows=200)
    result = run(tmp_path, data)
    model = load(result.directory / "models/peer-0000.safetensors")
    raw = data[0]["x"]
    low, high = intervals(model, raw, predicted(model, raw))
    inside = np.mean((np.array(low) <= data[0]["y"][:, 0]) & (data[0]["y"][:, 0] <= np.array(high)))
    assert 0.9 <= inside <= 0.99


def test_intervals_of_classes_are_those_of_their_logits(tmp_path: Path) -> None:
    """They follow from the covariance; of two classes both are the same statement."""
    data = hospitals()
    result = run(tmp_path, data)
    file = result.directory / "models/peer-0000.safetensors"
    model = load(file)
    raw = data[0]["x"][:5]
    p = predicted(model, raw)
    low0, high0, low1, high1 = np.array(intervals(model, raw, p))
    assert low0 == pytest.approx(1 - high1, abs=1e-6)
    assert high0 == pytest.approx(1 - low1, abs=1e-6)
    x = np.insert(model.preparation(torch.tensor(raw)).numpy(), 0, 1, axis=1)
    sd = np.sqrt(np.einsum("bj,jl,bl->b", x, known(result)["covariance"], x))
    eta = np.log(p[:, 1] / p[:, 0])
    assert low1 == pytest.approx(1 / (1 + np.exp(-(eta - 1.959964 * sd))), abs=1e-4)
