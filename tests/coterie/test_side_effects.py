"""A library call leaves the process as it found it."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie

SMALL = {"peers": 4, "partition.clusters": 2, "num-server-rounds": 2, "evaluate-every": 2}


def state_of_the_process() -> dict[str, Any]:
    """Everything that other code of the process could notice."""
    return {
        "torch threads": torch.get_num_threads(),
        "matmul tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn tf32": torch.backends.cudnn.allow_tf32,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "torch generator": torch.get_rng_state().tolist(),
        "numpy generator": str(np.random.get_state()),  # noqa: NPY002
        "random": random.getstate(),
        "numpy errors": np.geterr(),
        "environment": dict(os.environ),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": list(warnings.filters),
        "working directory": Path.cwd(),
        "path": list(sys.path),
        "hooks": [*sys.meta_path, sys.excepthook, sys.unraisablehook],
        "log handlers": list(logging.root.handlers),
        "log level": logging.root.level,
    }


def test_run_and_compare_change_nothing(tmp_path: Path) -> None:
    # Libraries are loaded first: what they do on import is theirs.
    coterie.compare(
        ["local"], None, SMALL, seeds=1, privacy__kind="examples", out=str(tmp_path / "first")
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    before = state_of_the_process()
    run = coterie.run(None, SMALL, out=str(tmp_path / "runs"), tf32=True, privacy__kind="examples")
    _ = run.metrics, run.graph, run.predict(0, np.zeros((2, 1, 8, 8)))
    coterie.compare(["local", "fedavg"], None, SMALL, seeds=1, out=str(tmp_path / "compared"))
    after = state_of_the_process()
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    assert {key for key in before if before[key] != after[key]} == set()


@pytest.mark.e2e
def test_imports_change_no_environment() -> None:
    code = (
        "import os; before = dict(os.environ); import coterie; coterie.run, coterie.Model; "
        "import coterie.clients.engine.network; assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.e2e
def test_a_run_after_trained_models_rounds_like_one_alone() -> None:
    """MKL rounds by the mode at its first product, which may be a trained model's (MKL_CBWR)."""
    code = (
        "import {}, torch; g = torch.Generator().manual_seed(0); torch.set_num_threads(1); "
        "x, y = (torch.randn(n, 800, generator=g, dtype=torch.float64) for n in (20, 1)); x @ x.T; "
        "import coterie.clients.engine.engine; print((x @ y.reshape(800, 1)).tolist())"
    )
    modules = ("coterie.app.trained.personal", "coterie.clients.engine.network")
    printed = [
        subprocess.check_output([sys.executable, "-c", code.format(module)]) for module in modules
    ]
    assert printed[0] == printed[1]
