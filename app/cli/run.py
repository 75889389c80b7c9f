"""`coterie run`: defaults < preset < overrides, here or on a deployment."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.runners import flower, local


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Start a run and stay until it ends."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")
    add_place(parser)
    parser.add_argument("--out", help="directory of run directories (runs)")
    parser.add_argument("--name", help="name of the run directory")
    given = parser.parse_intermixed_args(arguments)
    _, flat = read_items(given.items, deployed=bool(given.federation))
    flat |= {key: getattr(given, key) for key in ("out", "name") if getattr(given, key)}
    config = Config.from_flat(flat).located(time.strftime("%Y%m%d-%H%M%S"))
    if config.resume:
        raise ConfigError("resume = true is what `coterie resume RUN_DIR` sets")
    if Path(config.run_dir).exists():
        raise ConfigError(f"{config.run_dir} exists already: choose another name, or resume it")
    start(config, given, console)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Say where a run may take place."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--nodes", type=int, help="Flower nodes that share the peers (no Flower)")
    place.add_argument("--federation", help="SuperLink connection of your Flower configuration")


def start(config: Config, given: argparse.Namespace, console: Console) -> None:
    """Run `config`, which knows its directory, in the place that was asked for."""
    if given.federation:
        flower.deploy(config, given.federation, console)
    else:
        local.run(config, given.nodes, console)
