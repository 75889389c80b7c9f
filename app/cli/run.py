"""`coterie run`: run defaults < preset < overrides, here or on a deployment."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from rich.console import Console

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import sources_of
from coterie.app.runners import flower, local
from coterie.errors import Interrupted, short_path


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Start a run and wait until it ends."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")
    add_place(parser)
    parser.add_argument("--out", help="directory of run directories (runs)")
    parser.add_argument("--name", help="name of the run directory")
    options = parser.parse_intermixed_args(arguments)
    _, sources = sources_of(options.items)
    given = {key: getattr(options, key) for key in ("out", "name") if getattr(options, key)}
    config = Config.of(*sources, given, deployed=bool(options.federation))
    config = config.located(time.strftime("%Y%m%d-%H%M%S"))
    if config.resume:
        raise ConfigError("resume = true is set by `coterie resume RUN_DIR` only")
    if Path(config.run_dir).exists():
        raise ConfigError(f"{config.run_dir} exists already: choose another name, or resume it")
    start(config, options.nodes, options.federation, console)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose where a run is executed."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--nodes",
        type=int,
        help="split the peers over N Flower nodes (default: run in this process, without Flower)",
    )
    place.add_argument(
        "--federation", help="run on a deployment: a SuperLink connection of Flower's configuration"
    )


def start(config: Config, nodes: int | None, federation: str | None, console: Console) -> None:
    """Run `config`, which has its directory: here, on Flower nodes or on a deployment."""
    try:
        if federation:
            flower.deploy(config, federation, console)
        else:
            local.run(config, nodes, console)
    except KeyboardInterrupt:
        raise Interrupted(_continuation(config, nodes, federation)) from None


def _continuation(config: Config, nodes: int | None, federation: str | None) -> str:
    """Return the command that continues an interrupted run; empty if it had not begun."""
    if not Path(config.run_dir, "config.toml").exists():
        return ""
    place = {"--nodes": nodes, "--federation": federation}
    options = [str(word) for pair in place.items() if pair[1] for word in pair]
    return shlex.join(["coterie", "resume", short_path(config.run_dir), *options])
