"""Tables on a common scale: whose rows it comes from, and what a shared model gains by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.runners.local import config_of
from coterie.app.trained.inputs import read
from coterie.app.trained.personal import personal_model
from coterie.app.trained.predict import predicted
from coterie.datasets.problem import DataError, Problem
from tests.inline import run
from tests.kit import stacked

PEERS = ("0-north", "1-south", "2-west")
SCHEMA = """
[columns.age]
mean = 60
scale = 12.5
[columns.chol]
[columns.sex]
kind = "category"
categories = ["f", "m"]
[columns.days]
"""
FLAT: dict[str, Any] = {
    "dataset": "table", "table.columns": "age, chol, sex", "table.label": "days",
    "table.schema": "file", "table.missing": "mean", "peers": 3, "method": "fedavg",
    "model": "linear", "num-server-rounds": 4, "evaluate-every": 2, "device": "cpu",
    "dtype": "float64", "optimizer": "sgd", "learning-rate": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hospitals whose patients differ in age, with gaps; the last one did not measure chol."""
    folder = tmp_path_factory.mktemp("data")
    for peer, name in enumerate(PEERS):
        g, rows = np.random.default_rng(peer), 30 + 10 * peer
        table = pd.DataFrame({
            "age": g.normal(45 + 12 * peer, 8, rows).round(1),
            "chol": g.normal(230, 40, rows).round() * (peer < 2),
            "sex": g.choice(["f", "m"], rows),
        })  # fmt: skip
        table["days"] = (table.age / 60 + (table.sex == "f") + g.normal(0, 0.1, rows)).round(3)
        table.loc[g.choice(rows, 5, replace=False), "age"] = np.nan
        (folder / name).mkdir()
        table[10:].to_csv(folder / name / "train.csv", index=False)
        table[:10].to_csv(folder / name / "test.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


def pooled(data: Path) -> pd.DataFrame:
    return pd.concat([pd.read_csv(data / name / "train.csv") for name in PEERS], ignore_index=True)


def loaded(data: Path, **more: Any) -> Problem:
    keys = {key.replace("__", "."): value for key, value in more.items()}
    return problem_of(Config.from_flat(FLAT | {"data-dir": str(data)} | keys))


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_the_scale_is_that_of_all_training_rows(data: Path, missing: str) -> None:
    """A zero that stands for "not measured" does not move the mean of the others."""
    problem, rows = loaded(data, table__missing=missing), pooled(data)
    chol = rows.chol[rows.chol > 0]
    features = np.cumsum([0, *([2, 2] if missing == "indicator" else [1, 1])])
    for peer, name in enumerate(PEERS):
        steps = problem.preprocessing[peer]
        assert steps is not None
        assert steps.mean is not None
        assert steps.std is not None
        assert steps.fill is not None
        assert steps.mean[features[:2]] == pytest.approx([rows.age.mean(), chol.mean()])
        assert steps.std[features[:2]] == pytest.approx([rows.age.std(ddof=0), chol.std(ddof=0)])
        others = np.delete(np.arange(len(steps.mean)), features[:2])
        assert not steps.mean[others].any()
        assert (steps.std[others] == 1).all()
        own = pd.read_csv(data / name / "train.csv").age
        fill = own.median() if missing == "median" else rows.age.mean()
        assert steps.fill[0] == pytest.approx(fill)


def test_fedavg_on_a_common_scale_is_gradient_descent_on_the_pooled_rows(
    data: Path, tmp_path: Path
) -> None:
    """One full batch and one step a round, against a loop over the pooled rows."""
    rows = pooled(data)
    age, chol = rows.age, rows.chol.where(rows.chol > 0)
    x = np.column_stack([
        (age.fillna(age.mean()) - age.mean()) / age.std(ddof=0),
        (rows.chol - chol.mean()) / chol.std(ddof=0), rows.sex == "f", rows.sex == "m",
    ])  # fmt: skip
    x = x.astype(np.float32).astype(np.float64)

    def models(scale: str, rounds: int) -> list[dict[str, Any]]:
        keys = {"table.scale": scale, "num-server-rounds": rounds, "batch-size": len(rows)}
        directory = tmp_path / f"{scale}-{rounds}"
        return run(FLAT | {"data-dir": str(data), "local-steps": 1} | keys, directory).models()

    (name_w, name_b), first = ("1.weight", "1.bias"), models("common", 1)
    w, b = first[0][name_w].numpy()[0].copy(), float(first[0][name_b][0])
    for _ in range(4):
        error = x @ w + b - rows.days.to_numpy()
        w, b = w - 0.05 * 2 * error @ x / len(x), b - 0.05 * 2 * error.mean()
    common, own = (models(scale, 5)[0] for scale in ("common", "own"))
    assert np.allclose(common[name_w].numpy()[0], w, rtol=1e-9)
    assert np.allclose(common[name_b].numpy(), b, rtol=1e-9)
    assert not np.allclose(own[name_b].numpy(), b, rtol=1e-2)


def test_one_node_is_three_nodes(data: Path, tmp_path: Path) -> None:
    flat = FLAT | {"data-dir": str(data)}
    runs = [run(flat, tmp_path / str(nodes), nodes) for nodes in (1, 3)]
    assert torch.equal(stacked(runs[0]), stacked(runs[1]))
    assert np.array_equal(runs[0].metric("test_loss"), runs[1].metric("test_loss"))


def test_new_patients_are_on_the_scale(data: Path, tmp_path: Path) -> None:
    """The model of each hospital gives the same patient the same input."""
    (tmp_path / "new.csv").write_text("age,chol,sex\n70,,m\n,210,f\n")
    done = run(FLAT | {"data-dir": str(data)}, tmp_path / "run")
    models = [personal_model(done.directory, name) for name in PEERS]
    raw = read(tmp_path / "new.csv", models[0].about).raw
    answers = [predicted(model, raw) for model in models]
    assert all(np.array_equal(answers[0], each) for each in answers), "one shared model"


def test_a_start_on_another_scale_is_refused(data: Path, tmp_path: Path) -> None:
    flat = FLAT | {"data-dir": str(data), "out": str(tmp_path)}
    run(flat | {"table.scale": "own"}, tmp_path / "own")
    with pytest.raises(ConfigError, match=r"table\.scale: own, in this run common"):
        run(flat | {"start-from": "own"}, tmp_path / "common")


def test_newcomers_add_nothing_to_the_scale(data: Path) -> None:
    """A peer that joins late takes the scale of the others."""
    problem = loaded(data, **{"late-peers": 0.3})
    rows = [pd.read_csv(data / name / "train.csv").age for name in PEERS]
    steps = problem.preprocessing[0]
    assert steps is not None
    assert steps.mean is not None
    pairs = [pd.concat([rows[k] for k in range(3) if k != out]).mean() for out in range(3)]
    assert any(steps.mean[0] == pytest.approx(mean) for mean in pairs)


def test_the_schema_is_a_scale_for_all(data: Path) -> None:
    with pytest.raises(DataError, match=r"no mean and scale of chol: .*coterie schema proposes"):
        loaded(data, table__scale="schema")
    for keys in (
        {"table.columns": "age, sex", "table.scale": "schema"},
        {"table.columns": "age, sex", "privacy.kind": "examples"},
    ):
        problem = loaded(data, **keys)
        train = pd.read_csv(data / PEERS[1] / "train.csv").age.fillna(60)
        inputs = problem.inputs[problem.train.rows[1], 0]
        assert np.allclose(inputs, (train - 60) / 12.5, atol=1e-6)


def test_privacy_takes_no_statistics_of_the_rows(data: Path) -> None:
    with pytest.raises(DataError, match=r'schema\.toml has no mean and scale of chol.*"own"'):
        loaded(data, privacy__kind="examples")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"table.schema": "", "table.scale": "schema"}, 'scale = "schema": set schema'),
        ({"table.scale": "shared"}, "table.scale"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat(FLAT | keys)


def test_a_run_of_an_earlier_version_keeps_its_own_scale(data: Path, tmp_path: Path) -> None:
    done = tmp_path / "run"
    done.mkdir()
    text = Config.from_flat(FLAT | {"data-dir": str(data)}).toml()
    (done / "metrics.jsonl").touch()
    text = text.replace('missing = "mean"\n', 'missing = "mean"\nmean = ""\nstd = ""\n')
    (done / "config.toml").write_text(text.replace('scale = "common"\n', ""))
    assert config_of(done).dataset_options.scale == "own"  # type: ignore[attr-defined]
    (done / "config.toml").write_text(text)
    assert config_of(done).dataset_options.scale == "common"  # type: ignore[attr-defined]
