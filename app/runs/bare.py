"""A bare `flwr run` in Flower's simulation: what `python -m app run` does around other runs.

The user sees what the ServerApp prints (`flwr run . --stream`), so the relay introduces the
run, prints a line for each measured round, and lets the checkout write summary and report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from app.config import preflight
from app.config.config import Config, ConfigError
from app.runs import progress, rundir
from app.runs.introduction import introduce


def begin(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """Check and introduce a run, create its directory, and return the progress display.

    Raises
    ------
    ConfigError, DataError
        If the run cannot start; nothing was written.
    """
    if config.newcomers:
        raise ConfigError("hold-out is for runs without Flower: python -m app compare --hold-out")
    if config.track:
        raise ConfigError("track is for runs that `python -m app` starts")
    console = Console(highlight=False, markup=False)
    problem = preflight.check(config)
    rundir.create(config, problem)
    introduce(config, problem, "Flower's simulation", console)
    pace, shown = progress.Pace(), set[int]()
    strategy = config.strategy()

    def show(now: Mapping[str, Any]) -> None:
        t, state = now["round"], progress.line(now, pace)
        is_new = t not in shown and (t == 0 or strategy.is_evaluated(t))
        if is_new and progress.is_measured(now):
            shown.add(t)
            console.print(f"round {t}/{now['rounds']}  {state}", soft_wrap=True)

    return show


def end(run_dir: Path) -> None:
    """Print the summary and write the report; the checkout does, as the bundle has no pages."""
    checkout = os.environ.get("COTERIE_ROOT")
    if checkout is None:
        print(f"run directory: {run_dir}")
        return
    command = [sys.executable, "-m", "app", "report", str(run_dir)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
