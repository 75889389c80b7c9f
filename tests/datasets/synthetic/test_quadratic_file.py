from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.synthetic.quadratic import QuadraticOptions
from coterie.datasets.table import dataset_of

GOOD: dict[str, Any] = {
    "curvature": [[1.0, 2.0], [3, 0]],
    "centre": [[0.5, -1.0], [2.0, 4.0]],
    "noise": [0, 0.25],
    "start": [7, 8],
}


def load(folder: Path, table: object, peers: int = 2) -> Problem:
    file = folder / "problem.json"
    file.write_text(table if isinstance(table, str) else json.dumps(table))
    return dataset_of("quadratic").load(Partition(), peers, 0, folder, QuadraticOptions(str(file)))


def test_pool_holds_curvature_and_centre(tmp_path: Path) -> None:
    problem = load(tmp_path, GOOD)
    assert problem.task == "quadratic"
    assert problem.outputs == 2
    assert problem.inputs.dtype == np.float64
    np.testing.assert_array_equal(problem.inputs, [[[1, 2], [0.5, -1]], [[3, 0], [2, 4]]])
    for part in (problem.train, problem.validation, problem.test):
        np.testing.assert_array_equal(np.stack(part.rows), [[0], [1]])
        np.testing.assert_array_equal(np.stack(part.targets), np.zeros((2, 1)))
    np.testing.assert_array_equal(problem.samples, [1, 1])
    assert problem.noise is not None
    np.testing.assert_array_equal(problem.noise, [0, 0.25])
    assert problem.start is not None
    np.testing.assert_array_equal(problem.start, [[7, 8], [7, 8]])
    assert problem.clusters is None
    normalised = (problem.inputs - problem.mean) / problem.std
    np.testing.assert_array_equal(normalised, problem.inputs)
    assert problem.describe()[1]["train"] == {"size": 1, "labels": None}


def test_validation_centre_starts_and_samples_of_each_peer(tmp_path: Path) -> None:
    more = {
        "validation_centre": [[9, 9], [8, 8]],
        "start": [[1, 2], [3, 4]],
        "samples": [5, 6.0],
        "comment": "a key of the user's own",
    }
    problem = load(tmp_path, GOOD | more)
    np.testing.assert_array_equal(np.stack(problem.validation.rows), [[2], [3]])
    np.testing.assert_array_equal(problem.inputs[2:, 1], [[9, 9], [8, 8]])
    np.testing.assert_array_equal(problem.inputs[2:, 0], problem.inputs[:2, 0])
    np.testing.assert_array_equal(np.stack(problem.train.rows), [[0], [1]])
    np.testing.assert_array_equal(problem.samples, [5, 6])
    assert problem.start is not None
    np.testing.assert_array_equal(problem.start, [[1, 2], [3, 4]])


def test_a_rewritten_file_is_read_again(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    assert load(tmp_path, GOOD | {"noise": [3, 4]}).noise is not None
    np.testing.assert_array_equal(load(tmp_path, GOOD | {"noise": [3, 4]}).noise, [3, 4])


@pytest.mark.parametrize("key", ["curvature", "centre", "noise", "start"])
def test_missing_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(DataError, match=f"problem.json: `{key}`: Field required"):
        load(tmp_path, {k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("curvature", [[1, 2]]),
        ("curvature", [[1, 2], [3]]),
        ("curvature", [[1, 2], [3, -1]]),
        ("curvature", [[], []]),
        ("curvature", [1, 2]),
        ("curvature", "12"),
        ("centre", [[1, 2, 3], [4, 5, 6]]),
        ("centre", [[1, 2], 3]),
        ("centre", [[1, 2], [None, 3]]),
        ("centre", [[1, 2], [True, 3]]),
        ("centre", [[1, 2], ["3", 3]]),
        ("noise", [0]),
        ("noise", [0, -1]),
        ("noise", 0),
        ("noise", [0, float("nan")]),
        ("noise", [0, 10**400]),
        ("start", [1, 2, 3]),
        ("start", [[1, 2]]),
        ("start", [[1, 2], [3]]),
        ("start", [1, [2]]),
        ("start", 5),
        ("start", [float("inf"), 0]),
        ("samples", [1]),
        ("samples", [0, 1]),
        ("samples", [1.5, 1]),
        ("samples", [1e300, 1]),
        ("validation_centre", [[1, 2]]),
        ("validation_centre", [[1], [2]]),
        ("validation_center", [[1, 2], [3, 4]]),
        ("sample", [1, 1]),
    ],
)
def test_a_broken_value_is_refused_naming_file_and_key(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(DataError, match=rf"^quadratic\.file: .*problem\.json: `{key}`: ") as caught:
        load(tmp_path, GOOD | {key: value})
    assert "\n" not in str(caught.value)


def test_peers_must_agree_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`curvature`: has 2 rows but peers = 3"):
        load(tmp_path, GOOD, peers=3)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nonsense"])
def test_not_a_json_object(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"^quadratic\.file: .*problem\.json .*JSON"):
        load(tmp_path, text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"quadratic\.file: name the JSON file"):
        dataset_of("quadratic").load(Partition(), 2, 0, tmp_path, QuadraticOptions())
    with pytest.raises(DataError, match=r"cannot read .*gone\.json"):
        dataset_of("quadratic").load(Partition(), 2, 0, tmp_path, QuadraticOptions("gone.json"))
