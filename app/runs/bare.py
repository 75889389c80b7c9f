"""A bare `flwr run` in Flower's simulation: what `coterie run` does around other runs.

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

from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.runs import progress, rundir
from coterie.app.runs.introduction import introduce
from coterie.app.runs.terminal import Terminal


def begin(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """Check and introduce a run, and make its directory; what shows its progress.

    Raises
    ------
    ConfigError, DataError
        It cannot run. Nothing was written.
    """
    if config.newcomers:
        raise ConfigError("hold-out is for runs without Flower: coterie compare --hold-out")
    if config.track:
        raise ConfigError("track is for runs that `coterie` starts")
    console = Terminal()
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
    command = [sys.executable, "-m", "coterie", "report", str(run_dir)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
