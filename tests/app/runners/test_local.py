"""Test the output and the files of one run in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.runners import inline, local
from coterie.app.runs.rundir import Run
from coterie.errors import DivergedError, RunError

TINY = {"peers": 4, "partition.clusters": 2, "num-server-rounds": 6, "evaluate-every": 3}


def config(directory: Path, **keys: Any) -> Config:
    flat = {key.replace("_", "-"): value for key, value in keys.items()}
    return Config.from_flat({**TINY, **flat, "out": str(directory)}).located("run")


def printed(config: Config) -> str:
    console = Console(file=io.StringIO(), width=120)
    local.run(config, None, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.slow
def test_a_run_without_nodes_is_whole(tmp_path: Path) -> None:
    here = config(tmp_path)
    text = printed(here)
    assert (
        "cobo on digits: 4 peers, label-permutation in 2 clusters, at most 60 examples each "
        "(partition.samples-per-peer); in this process"
    ) in text
    assert "training examples of each class" in text
    run = Run.read(here.run_dir)
    assert run.rounds.tolist() == [0, 3, 6]
    summary = json.loads((run.directory / "summary.json").read_text())
    assert f"Mean test accuracy  {100 * summary['mean_test_accuracy']:.1f} %" in text
    assert f"report: {run.directory / 'report.html'}" in text
    assert (run.directory / "report.html").exists()


def test_every_round_is_told_with_what_was_measured_last(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def watch(now: Mapping[str, Any]) -> None:
        seen.append((now["round"], now["mean_test_accuracy"] is not None))

    one = config(tmp_path, method="local", num_server_rounds=4, evaluate_every=4)
    inline.run(one, watch)
    assert dict(seen) == dict.fromkeys(range(5), True)
    assert seen[0] == (0, False), "before anything was measured"


def test_a_method_that_needs_validation_data_says_so(tmp_path: Path) -> None:
    text = printed(config(tmp_path, method="dpfl", **{"dpfl.init-epochs": 1}))
    assert "dpfl evaluates models on validation data: partition.validation = 0.2" in text


def test_divergence_has_a_name(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    one = config(tmp_path, method="local", dataset="sine", learning_rate=1e30)
    with pytest.raises(DivergedError, match="every peer diverged: try a smaller learning-rate"):
        local.run(one, None, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "4 of 4 peers diverged: their loss or model is not finite" in " ".join(text.split())
    assert f"report: {Path(one.run_dir, 'report.html')}" in text
    now = json.loads(Path(one.run_dir, "progress.json").read_text())
    assert (now["diverged"], now["status"]) == (4, "diverged")
    assert json.loads(Path(one.run_dir, "summary.json").read_text())["status"] == "diverged"


def test_a_run_that_fails_is_one_line(tmp_path: Path) -> None:
    one = config(tmp_path)
    Path(one.run_dir).mkdir()
    Path(one.run_dir, "models").write_text("in the way")
    with pytest.raises(RunError) as failure:
        printed(one)
    assert "\n" not in str(failure.value)
    assert json.loads(Path(one.run_dir, "progress.json").read_text())["status"] == "failed"
