"""`coterie resume`: continue a run from its last checkpoint."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_parts
from coterie.app.cli.run import add_place, start
from coterie.app.config import parts
from coterie.app.config.config import ConfigError
from coterie.app.runners import submission
from coterie.app.runners.local import config_of
from coterie.app.runs import progress


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Continue a run and wait until it ends."""
    parser.add_argument("run_dir", type=Path)
    add_place(parser)
    add_parts(parser)
    options = parser.parse_args(arguments)
    run_dir = options.run_dir.absolute()
    config = config_of(run_dir, options.part)
    if options.federation:
        parts.refuse_modules(config.chosen)
    if progress.read(run_dir).get("status") in progress.OVER:
        raise ConfigError(f"{options.run_dir} is finished already: nothing to resume")
    submitted = submission.newest(run_dir)
    if submitted is not None and not submission.is_over(submitted):
        where = f"run {submitted['run']} of {submitted['connection']}, {submitted['status']}"
        command = shlex.join(["coterie", "stop", str(options.run_dir)])
        raise ConfigError(f"{options.run_dir} is in progress ({where}): stop it with {command}")
    config = config.with_(name=run_dir.name, run_dir=str(run_dir), resume=True)
    start(config, options.nodes, options.federation, console)
