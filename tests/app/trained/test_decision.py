"""Threshold and temperature of a model's file, at the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.app.cli.main import main
from coterie.app.trained import decision
from coterie.app.trained.personal import personal_model
from coterie.clients.diagnostics import recalibrated
from coterie.datasets.partition.options import Partition
from coterie.datasets.table import dataset_of
from tests.output import csv_rows


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys: dict[str, Any] = {
        "dataset": "heart-disease", "peers": 4, "partition.kind": "natural",
        "partition.samples-per-peer": 0, "partition.validation": 0.2, "method": "fedavg-ft",
        "num-server-rounds": 4, "device": "cpu", "name": "run",
        "out": str(tmp_path_factory.mktemp("runs")),
    }  # fmt: skip
    return coterie.run(None, keys).directory


def patients(folder: Path, peer: int) -> Path:
    partition = Partition(kind="natural", samples_per_peer=0)
    problem = dataset_of("heart-disease").load(partition, 4, 0, Path("data"), None)
    path = folder / "patients.npz"
    np.savez(path, x=problem.inputs[problem.test.rows[peer]])
    return path


def rows(done: Path, folder: Path, *options: str) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Predicted classes, and probabilities of the second class."""
    out = folder / "predictions.csv"
    command = ["predict", str(done), "--peer", "1", str(patients(folder, 1)), "--out", str(out)]
    assert main([*command, *options]) == 0
    lines = csv_rows(out)
    return [row["prediction"] for row in lines], np.array(
        [float(row["probability_ill"]) for row in lines]
    )


@pytest.mark.slow
def test_a_threshold_decides(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, p = rows(done, tmp_path)
    assert plain == np.where(p > 0.5, "ill", "healthy").tolist()
    number, same = rows(done, tmp_path, "--threshold", "0.2")
    assert number == np.where(p > 0.2, "ill", "healthy").tolist()
    assert np.array_equal(p, same)
    chosen = json.loads((done / "models" / "peer-0001.json").read_text())["diagnostics"]
    capsys.readouterr()
    decided, _ = rows(done, tmp_path, "--threshold", "validation")
    assert "validation examples chose the threshold" not in capsys.readouterr().out
    assert decided == np.where(p > chosen["threshold"], "ill", "healthy").tolist()
    assert decided != plain


def test_recalibration_scales_probabilities_and_keeps_decisions(done: Path, tmp_path: Path) -> None:
    plain, p = rows(done, tmp_path)
    temperature = personal_model(done, 1).point.temperature
    assert temperature is not None
    decided, scaled = rows(done, tmp_path, "--recalibrate")
    expected = recalibrated(np.stack([1 - p, p], axis=1), temperature)[:, 1]
    np.testing.assert_allclose(scaled, expected, atol=1e-6)
    assert decided == plain
    both, again = rows(done, tmp_path, "--recalibrate", "--threshold", "validation")
    assert np.array_equal(scaled, again)
    assert both == rows(done, tmp_path, "--threshold", "validation")[0], "chosen before scaling"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--threshold", "validation"], "no threshold of validation examples"),
        (["--recalibrate"], "no temperature of validation examples"),
        (["--threshold", "2"], "neither a number from 0 to 1"),
    ],
)
def test_what_cannot_be_decided_is_one_line(
    options: list[str], says: str, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All validation patients of Switzerland are ill."""
    command = ["predict", str(done), "--peer", "switzerland", str(patients(tmp_path, 2))]
    assert main([*command, *options, "--out", str(tmp_path / "x.csv")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize(
    "strings",
    [
        {"threshold": "2"}, {"threshold": "NaN"}, {"threshold": "true"}, {"temperature": "0"},
        {"temperature": '"1"'}, {"temperature": "["},
    ],
)  # fmt: skip
def test_metadata_of_others_are_checked(strings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"its (threshold|temperature)|Expecting"):
        decision.of_strings(strings)


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_threshold_that_decides_the_same_for_all_is_valid(threshold: int) -> None:
    assert decision.of_strings({"threshold": str(threshold)}).threshold == threshold


def test_a_threshold_that_few_examples_chose_is_warned_about() -> None:
    assert decision.OperatingPoint(0.3, 1.0, 19).caution.startswith(
        "19 validation examples chose the threshold and the temperature, fewer than 20: "
    )
    assert not decision.OperatingPoint(0.3, 1.0, 20).caution
    assert not decision.OperatingPoint(0.3, 1.0).caution, "a model of an earlier version"
