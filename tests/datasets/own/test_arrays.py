"""A file of arrays for each peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.own.arrays import ArraysOptions
from datasets.partition.options import Partition
from datasets.problem import DataError, Problem
from datasets.table import DATASETS

G = np.random.default_rng(0)
SOUND: dict[str, Any] = {"x": G.normal(3, 2, (20, 2, 3)), "y": G.integers(3, size=20)}
CLASSES = ArraysOptions(classes="a, b, c")


def load(folder: Path, options: ArraysOptions = CLASSES, **peers: dict[str, Any]) -> Problem:
    folder.mkdir(exist_ok=True)
    for name, arrays in peers.items():
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    return DATASETS["arrays"].load(Partition(), len(peers), 0, folder, options)


def test_parts_are_taken_or_drawn(tmp_path: Path) -> None:
    more = {"x_test": SOUND["x"][:5], "y_test": SOUND["y"][:5]}
    problem = load(tmp_path, north=SOUND, south=SOUND | more)
    assert problem.names == ("north", "south")
    assert (problem.classes, problem.task) == (("a", "b", "c"), "classification")
    assert problem.train.sizes.tolist() == [16, 20]
    assert problem.test.sizes.tolist() == [4, 5]
    inputs = problem.inputs[problem.train.rows[1]]  # each channel by the peer's own statistics
    assert np.allclose(inputs.mean(axis=(0, 2)), 0, atol=1e-6)
    assert np.allclose(inputs.std(axis=(0, 2)), 1, atol=1e-6)
    fitted = problem.preprocessing[1]
    assert fitted is not None
    assert np.array_equal(fitted.apply(SOUND["x"]), problem.inputs[problem.train.rows[1]])


def test_numbers_are_predicted_without_classes(tmp_path: Path) -> None:
    arrays = {"x": SOUND["x"], "y": G.normal(size=(20, 2))}
    problem = load(tmp_path, ArraysOptions(), one=arrays, two=arrays)
    assert (problem.task, problem.outputs) == ("regression", 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": SOUND["y"] + 1}, "classes beyond the run's 3"),
        ({"y": SOUND["y"][:9]}, "a row for each example"),
        ({"x": np.full((20, 2, 3), np.nan)}, "not finite"),
        ({"x": SOUND["x"][:, :1]}, "different shapes"),
        ({"x": SOUND["x"].astype(str)}, "must be numbers"),
        ({"x_test": SOUND["x"]}, "no y_test"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        load(tmp_path, good=SOUND, bad=SOUND | change)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=SOUND["x"], y=np.array([{}] * 20))
    with pytest.raises(DataError, match="cannot be read"):
        DATASETS["arrays"].load(Partition(), 1, 0, tmp_path, CLASSES)
