"""metrics.jsonl read on from where the last reading ended."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coterie.app.runs import atomic
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Metrics, Run, RunReader
from tests.app.dashboard.running import Running, running
from tests.app.fake_run import write_progress


def line(t: int, peer: int, **metrics: float | None) -> bytes:
    return json.dumps({"round": t, "peer": peer, **metrics}).encode() + b"\n"


def same(one: Metrics, path: Path, peers: int) -> None:
    """It has read what one has that begins now."""
    got, expected = one.read(), Metrics(path, peers).read()
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[2], expected[2])
    assert got[1].keys() == expected[1].keys()
    for name, values in expected[1].items():
        np.testing.assert_array_equal(got[1][name], values)


def test_a_file_that_grows_byte_by_byte_is_read_as_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    text = line(0, 1, loss=1.0) + line(0, 0, loss=None) + line(10, 1, loss=0.5, accuracy=1e9)
    text += line(0, 1, accuracy=2.0) + line(20, 0, loss=float("inf"))
    one = Metrics(path, 2)
    same(one, path, 2)
    for size in range(len(text) + 1):
        path.write_bytes(text[:size])
        same(one, path, 2)
    rounds, metrics, reported = one.read()
    assert rounds.tolist() == [0, 10, 20]
    nan, inf = np.nan, np.inf
    np.testing.assert_array_equal(metrics["loss"], [[nan, nan], [nan, 0.5], [inf, nan]])
    np.testing.assert_array_equal(metrics["accuracy"], [[nan, 2.0], [nan, 1e9], [nan, nan]])
    assert reported.tolist() == [[True, True], [False, True], [True, False]]


def test_only_what_is_new_is_parsed(tmp_path: Path) -> None:
    """Parsed lines are kept, even if the file changes later."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(0, 0, loss=1.0))
    one = Metrics(path, 1)
    one.read()
    with path.open("r+b") as file:
        file.write(line(0, 0, loss=9.0))
    with path.open("ab") as file:
        file.write(line(1, 0, loss=2.0))
    np.testing.assert_array_equal(one.read()[1]["loss"], [[1.0], [2.0]])


def test_a_file_that_a_resumed_run_has_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(0, 0, loss=1.0) + line(10, 0, loss=2.0))
    one = Metrics(path, 1)
    one.read()
    atomic.write(path, line(0, 0, loss=1.0))
    same(one, path, 1)
    atomic.write(path, line(0, 0, loss=7.0) + line(5, 0, loss=3.0) + line(10, 0, loss=4.0))
    same(one, path, 1)
    path.write_bytes(line(0, 0, loss=8.0))  # in place
    same(one, path, 1)
    path.unlink()
    same(one, path, 1)


def test_a_wrong_line_is_named_each_time_until_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(0, 0, loss=1.0))
    one = Metrics(path, 1)
    one.read()
    with path.open("ab") as file:
        file.write(b'{"round": 1, "peer": 7}\n' + line(2, 0, loss=1.0))
    for _ in range(2):
        with pytest.raises(ResultsError, match=r"metrics.jsonl:2: .* no round and peer below 1"):
            one.read()
    atomic.write(path, line(0, 0, loss=1.0) + line(2, 0, loss=1.0))
    same(one, path, 1)


def test_a_run_that_goes_on_has_its_newest_map(tmp_path: Path) -> None:
    with running(tmp_path / "mine") as run:
        reader = RunReader(run.directory)
        for t in (0, 10, 20):
            run.reach(t)
            now = reader.read()
            assert now.weight_rounds.tolist() == now.rounds.tolist() == list(range(0, t + 1, 10))
        assert not (run.directory / "collaboration.npz").exists(), "it is written now and then"
        mapped = now.weights.copy()
        run.recorder.finish()
    np.testing.assert_array_equal(Run.read(run.directory).weights, mapped)
    (run.directory / "relay" / "weights.f64").write_bytes(b"half a row")
    write_progress(run.directory, status="running")
    assert Run.read(run.directory).weights.shape == (0, 4, 4)


def test_a_map_cut_off_in_mid_write_is_not_in_it(tmp_path: Path) -> None:
    run = Running(tmp_path / "mine")
    run.reach(0)
    with (run.directory / "relay" / "weights.f64").open("ab") as file:
        file.write(np.float64(10).tobytes())
    assert Run.read(run.directory).weight_rounds.tolist() == [0]
