"""A run with nothing replaced: `flwr run` with Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.runs.rundir import Run
from tests.inprocess import ROOT, simulate

PEERS, ROUNDS = 3, 2


@pytest.mark.e2e
def test_flwr_run_with_ray(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    problem = {
        "curvature": [[1.0, 0.5], [0.8, 0.6], [1.2, 0.9]],
        "centre": [[0.0, 1.0], [0.1, 1.1], [5.0, -3.0]],
        "noise": [0.1, 0.1, 0.1],
        "start": [1.0, 1.0],
    }
    file.write_text(json.dumps(problem))
    config: dict[str, str | int] = {
        "dataset": "quadratic", "quadratic.file": str(file), "peers": PEERS,
        "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "cobo.sampling": "full",
    }  # fmt: skip
    simulate({**config, "run-dir": str(tmp_path / "expected")}, nodes=1)
    overrides = [f"{key}={value}" for key, value in config.items()]
    place = ["--out", str(tmp_path), "--name", "run", "--nodes", "2"]
    command = [sys.executable, "-m", "app", "run", *overrides, *place]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    run, expected = Run.read(tmp_path / "run"), Run.read(tmp_path / "expected")
    assert run.rounds.tolist() == expected.rounds.tolist() == [0, ROUNDS]
    for name, values in expected.metrics.items():
        np.testing.assert_allclose(run.metrics[name], values, rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(run.weights, expected.weights, rtol=1e-10)
    assert len(list((tmp_path / "run" / "models").glob("*.safetensors"))) == PEERS
