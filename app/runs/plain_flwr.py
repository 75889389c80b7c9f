"""Start and end of a plain `flwr run` in Flower's simulation, as `coterie run` has for its runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.root import IMPORT_ROOT, refuse_other_code, workplace
from coterie.app.runs import rundir
from coterie.app.runs.header import header
from coterie.app.runs.progress import RunState
from coterie.app.runs.terminal import Terminal

OPEN = (
    "note: the SuperLink of `flwr run` takes code and orders from every user of this machine; "
    "`coterie run --nodes N` has none"
)


def begin(config: Config) -> Callable[[Mapping[str, Any]], None]:
    """Check a run, print its header, create its directory, and return the progress display."""
    refuse_other_code()
    if config.newcomers:
        raise ConfigError("late-peers is for runs without Flower: coterie run")
    if config.track:
        raise ConfigError("track is for runs that `coterie` starts")
    console = Terminal()
    problem = preflight.check(config)
    rundir.create(config, problem)
    console.print(OPEN, soft_wrap=True)
    header(config, problem, "Flower's simulation", console)
    shown = set[int]()
    strategy = config.strategy()

    def show(now: Mapping[str, Any]) -> None:
        t, state = now["round"], RunState(now)
        is_new = t not in shown and (t == 0 or strategy.is_evaluated(t))
        if is_new and state.is_measured:
            shown.add(t)
            console.print(f"round {t}/{now['rounds']}  {state.line}", soft_wrap=True)

    return show


def end(run_dir: Path) -> None:
    """Print the summary, and write the report with the installed package, which has pages."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    outside = [path for path in paths if path and Path(path).resolve() != IMPORT_ROOT]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "coterie", "report", str(run_dir)],
        cwd=workplace(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(outside)},
        capture_output=True,
        text=True,
    )
    print(done.stdout + done.stderr, end="")
    if done.returncode:
        print(f"no report without `pip install coterie`; after it: coterie report {run_dir}")
