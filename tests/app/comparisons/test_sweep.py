"""Sweeps over keys: which runs they are, what they reuse, and how their rows are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.app.cli import sweep as command
from coterie.app.cli.main import main
from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.config import ConfigError
from coterie.app.config.schema import Scalar
from coterie.app.dashboard.library import Library
from coterie.app.dashboard.pages import Pages
from coterie.app.runs import plan
from coterie.app.runs.rundir import Run
from tests.output import Terminal, csv_rows

TINY: dict[str, Scalar] = {
    "method": "cobo", "peers": 4, "num-server-rounds": 4, "evaluate-every": 2,
    "partition.clusters": 2,
}  # fmt: skip


def swept(directory: Path, seeds: int = 1, flat: dict[str, Any] = TINY, **values: Any) -> str:
    """Return the output of a sweep; "cobo__rho" is the key cobo.rho."""
    console = Terminal()
    sweep = {key.replace("__", ".").replace("_", "-"): of_key for key, of_key in values.items()}
    compare(ComparisonRequest("tiny", flat, (), directory, seeds, workers=1, sweep=sweep), console)
    return console.text


def rows_of(directory: Path) -> list[dict[str, str]]:
    return csv_rows(directory / "comparison.csv")


@pytest.mark.slow
def test_a_row_for_each_combination(tmp_path: Path) -> None:
    swept(tmp_path, seeds=2, cobo__rho=[0.1, 0.2], learning_rate=[0.1, 0.3])
    rows = rows_of(tmp_path)
    assert [(row["method"], row["seed"]) for row in rows] == [
        (f"cobo.rho={rho} learning-rate={rate}", seed)
        for rho in (0.1, 0.2) for rate in (0.1, 0.3) for seed in "01"
    ]  # fmt: skip
    for row in rows:
        config = Run.read(tmp_path / row["run"]).config
        assert float(row["cobo.rho"]) == config["cobo"]["rho"]
        assert float(row["learning-rate"]) == config["learning-rate"]
        assert int(row["seed"]) == config["seed"]


@pytest.mark.slow
def test_finished_runs_are_used_again_and_values_can_be_added(tmp_path: Path) -> None:
    swept(tmp_path, learning_rate=[0.1, 0.3])
    assert "1 run to do\n" in swept(tmp_path, learning_rate=[0.1, 0.3, 1.0])
    assert "to do" not in swept(tmp_path, learning_rate=[0.1, 0.3, 1.0])
    with pytest.raises(ConfigError, match=r"other settings \(learning-rate=1.0\): choose another"):
        swept(tmp_path, learning_rate=[0.1, 0.3])


def test_a_method_is_not_repeated_for_keys_that_it_ignores(tmp_path: Path) -> None:
    """Local has no rho: one run of it, and the gain of every CoBo is measured against it."""
    swept(tmp_path, method=["local", "cobo"], cobo__rho=[0.1, 0.2])
    rows = {row["method"]: row for row in rows_of(tmp_path)}
    assert list(rows) == ["local", "cobo cobo.rho=0.1", "cobo cobo.rho=0.2"]
    for row in rows.values():
        gain = float(row["accuracy"]) - float(rows["local"]["accuracy"])
        assert float(row["gain"]) == pytest.approx(gain)


@pytest.mark.slow
def test_a_recipe_is_not_repeated_for_keys_that_it_sets(tmp_path: Path) -> None:
    """DFedAvgM sets momentum 0.9: one run of it, under its own name."""
    swept(tmp_path, method=["fedavg", "dfedavgm"], momentum=[0.0, 0.5])
    rows = {row["method"]: row for row in rows_of(tmp_path)}
    assert list(rows) == ["fedavg momentum=0.0", "fedavg momentum=0.5", "dfedavgm"]
    assert Run.read(tmp_path / rows["dfedavgm"]["run"]).config["momentum"] == 0.9
    only = {**TINY, "method": "dfedavgm"}
    with pytest.raises(ConfigError, match="momentum has no effect on these runs"):
        swept(tmp_path / "only", flat=only, momentum=[0.0, 0.5])
    swept(tmp_path / "rates", flat=only, learning_rate=[0.1, 0.3])
    labels = [row["method"] for row in rows_of(tmp_path / "rates")]
    assert labels == ["learning-rate=0.1", "learning-rate=0.3"]


def test_a_gain_is_over_local_with_the_same_values(tmp_path: Path) -> None:
    swept(tmp_path, method=["local", "fedavg"], learning_rate=[0.1, 0.3])
    rows = {row["method"]: row for row in rows_of(tmp_path)}
    assert len(rows) == 4
    for rate in (0.1, 0.3):
        alone, shared = (rows[f"{name} learning-rate={rate}"] for name in ("local", "fedavg"))
        gain = float(shared["accuracy"]) - float(alone["accuracy"])
        assert float(shared["gain"]) == pytest.approx(gain)


@pytest.mark.slow
def test_rows_with_different_data_are_not_ranked(tmp_path: Path) -> None:
    """Their peers cannot be paired: no bold, no gain, no maps."""
    text = swept(tmp_path, seeds=3, method=["fedavg"], peers=[2, 4])
    assert "Not ranked, because the peers have different data." in text
    page = (tmp_path / "comparison.html").read_text()
    assert '"gains":null' in page.replace(" ", "")
    assert '"maps":null' in page.replace(" ", "")
    assert r"\textbf" not in (tmp_path / "comparison.tex").read_text()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ditto__lambda": [0.1, 1.0]}, "ditto.lambda has no effect on these runs"),
        ({"seed": [0, 1]}, "seed cannot be swept"),
        ({"learning_rate": [0.1, -1.0]}, "learning-rate = -1.0: must be above 0"),
        ({"cobo__sampling": ["full", "half"]}, 'cobo.sampling = "half": must be'),
        ({"rate": [1, 2]}, 'unknown key "rate"'),
    ],
)
def test_a_wrong_value_is_refused_before_anything_starts(
    tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        swept(tmp_path / "out", **values)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_dashboard_and_python_have_the_same_rows(tmp_path: Path) -> None:
    there = coterie.sweep({"cobo.rho": [0.1, 0.2]}, None, TINY, seeds=2, out=tmp_path / "sweep")
    labels = ["cobo.rho=0.1", "cobo.rho=0.2"]
    assert list(there.table.index) == labels
    assert "cobo.rho" not in there.table
    assert {label: len(runs) for label, runs in there.runs.items()} == dict.fromkeys(labels, 2)
    assert set(there.metrics["method"]) == set(labels)
    page = Pages(Library(tmp_path)).page("comparison", "sweep")
    assert all(label in page for label in labels)


def test_swept_values_of_a_directory_may_be_anything(tmp_path: Path) -> None:
    anything: list[Any] = [[], {"a": []}, {"a": {"b": [1]}}, {"a": {"b": None}}]
    for values in anything:
        (tmp_path / plan.NAME).write_text(json.dumps({"runs": [], "values": values}))
        assert plan.read(tmp_path).values == {}


# --- the command line -----------------------------------------------------------------------------


def test_items_with_commas_are_swept() -> None:
    preset, flat, values = command._read(
        [
            "cobo/fashion-mnist",
            "peers=4",
            "cobo.rho=0.1,1",
            "mlp.hidden=64,6-3",
            "sealing=auto,true",
        ]
    )
    assert preset == "fashion-mnist"
    assert (flat["dataset"], flat["peers"]) == ("fashion-mnist", 4)
    assert values == {
        "cobo.rho": [0.1, 1.0], "mlp.hidden": ["64", "6-3"], "sealing": ["auto", True],
    }  # fmt: skip


def test_a_quoted_value_may_contain_commas() -> None:
    _, flat, values = command._read(
        ['table.columns="age, bmi","age"', 'table.classes="no, yes"', "table.label=y"]
    )
    assert values == {"table.columns": ["age, bmi", "age"]}
    assert flat["table.classes"] == "no, yes"


def test_options_of_a_plugin_are_swept() -> None:
    """Their keys belong to the method that the same line names."""
    _, _, values = command._read(["method=tests.plugins:Mine", "method-options.strength=0.25,0.5"])
    assert values == {"method-options.strength": [0.25, 0.5]}


def test_a_sweep_without_values_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "learning-rate=0.1"]) == 2
    assert "as in learning-rate=0.03,0.1" in capsys.readouterr().err
    assert main(["sweep", "learning-rate=0.1,"]) == 2
    assert "learning-rate=: must be a number" in capsys.readouterr().err


def test_an_interrupted_sweep_prints_the_command_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "compare", interrupt)
    line = ["sweep", "peers=2,4", "--out", str(tmp_path)]
    assert main(line) == 130
    assert f"continue with: coterie {' '.join(line)}" in capsys.readouterr().err
