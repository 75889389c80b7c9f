"""`coterie stop`: stop a run in progress, which `coterie resume` can continue."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runners import submission
from coterie.app.runs import rundir


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Stop a run at its SuperLink, or the process of this machine that runs it."""
    parser.add_argument("run_dir", type=Path)
    run_dir: Path = parser.parse_args(arguments).run_dir
    if not (run_dir / "config.toml").is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.toml")
    submitted = submission.newest(run_dir)
    # Another disk may have a locked file of the same number.
    process = rundir.held_inodes().get(run_dir.stat().st_ino)
    if submitted is not None and not submission.is_over(submitted):
        submission.stop(run_dir, submitted)
        console.print(f"stopped run {submitted['run']} of {submitted['connection']}")
    elif process and run_dir.resolve() in map(Path.resolve, Path(f"/proc/{process}/fd").glob("*")):
        os.kill(process, signal.SIGINT)
        console.print(f"process {process} stops after this round")
    else:
        raise ConfigError(f"{run_dir} is not in progress: nothing to stop here")
