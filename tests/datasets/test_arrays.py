"""Files of arrays; tests/coterie tests valid arrays (`coterie.datasets.per_peer`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.datasets.partition.options import Partition
from coterie.datasets.per_peer import ArraysOptions
from coterie.datasets.problem import DataError
from coterie.datasets.table import DATASETS

G = np.random.default_rng(0)
SOUND: dict[str, Any] = {"x": G.normal(3, 2, (20, 3)), "y": G.integers(2, size=20)}
CLASSES = ArraysOptions(classes="no, yes")
ROW = DATASETS["arrays"]


def write(folder: Path, **peers: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, arrays in peers.items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def test_a_node_has_what_its_peer_has_in_a_simulation(tmp_path: Path) -> None:
    other = {"x": SOUND["x"] + 1, "y": SOUND["y"][::-1]}
    folder = write(tmp_path / "all", north=SOUND, south=other)
    problem = ROW.load(Partition(), 2, 0, folder, CLASSES)
    assert (problem.names, problem.classes) == (("north", "south"), ("no", "yes"))
    assert ROW.deployed is not None
    deployed = ROW.deployed(1, 2, 0, write(tmp_path / "own", south=other), CLASSES)
    for there, here in ((problem.train, deployed.train), (problem.test, deployed.test)):
        inputs = problem.inputs[there.rows[1]]
        assert len(inputs)
        assert np.array_equal(inputs, deployed.inputs[here.rows[1]])
        assert np.array_equal(there.targets[1], here.targets[1])


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    write(tmp_path, one=SOUND | {"y": np.array([{}] * 20)})
    with pytest.raises(DataError, match=r"one\.npz is damaged"):
        ROW.load(Partition(), 1, 0, tmp_path, CLASSES)


def test_every_peer_has_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 files"):
        ROW.load(Partition(), 2, 0, write(tmp_path, one=SOUND), CLASSES)


def test_a_number_at_one_peer_and_its_text_at_another_are_one_class(tmp_path: Path) -> None:
    write(tmp_path, north=SOUND, south=SOUND | {"y": SOUND["y"].astype(str)})
    problem = ROW.load(Partition(), 2, 0, tmp_path, ArraysOptions())
    assert (problem.classes, problem.outputs) == (("0", "1"), 2)
    parts = problem.train, problem.test
    north, south = (np.concatenate([part.targets[peer] for part in parts]) for peer in (0, 1))
    assert np.array_equal(np.bincount(north), np.bincount(south))
