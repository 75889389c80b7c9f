"""Run something once and keep its result, so that an interrupted study continues."""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.app.config.config import Config
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners import sweep
from coterie.app.runs.rundir import Run


def kept(config: Config, directory: Path) -> Run:
    """Return the run of a configuration below a directory; carry it out if it is missing."""
    config = with_run_dir(config, directory)
    if not sweep.is_finished(config) and (error := sweep.run_one(config)):
        sys.exit(f"{config.run_dir}: {error}")
    return Run.read(config.run_dir)
