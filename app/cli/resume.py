"""`coterie resume`: continue a run from its last checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_parts
from coterie.app.cli.run import add_place, start
from coterie.app.config import defaults, parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_toml
from coterie.app.runs import files, progress


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Continue a run and wait until it ends."""
    parser.add_argument("run_dir", type=Path)
    add_place(parser)
    add_parts(parser)
    options = parser.parse_args(arguments)
    run_dir = options.run_dir.absolute()
    files.check_all(run_dir)
    if not (run_dir / "config.toml").is_file():
        raise ConfigError(f"{options.run_dir} is not a run directory: it has no config.toml")
    flat = defaults.of_project() | read_toml(run_dir / "config.toml", options.part)
    if options.federation:
        parts.refuse_modules(flat)
    config = Config.from_flat(flat)
    if progress.read(run_dir).get("status") in progress.OVER:
        raise ConfigError(f"{options.run_dir} is finished already: nothing to resume")
    config = replace(config, name=run_dir.name, run_dir=str(run_dir), resume=True)
    start(config, options.nodes, options.federation, console)
