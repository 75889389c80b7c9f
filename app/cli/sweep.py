"""`coterie sweep`: run an experiment for several values of keys, and compare them."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_comparison, continued
from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError
from coterie.app.config.schema import Scalar


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Run every combination of the values, and print their table."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value|key=value,value,...")
    add_comparison(parser, "sweep")
    options = parser.parse_intermixed_args(arguments)
    preset, flat, sweep = _read(options.items)
    directory = Path(options.out or Path(str(flat.get("out", "runs")), "sweep", preset))
    request = ComparisonRequest(
        preset, flat, (), directory, options.seeds, workers=options.workers, sweep=sweep,
        numbered=options.out is None,
    )  # fmt: skip
    with continued("sweep", arguments, directory):
        compare(request, console)


def _read(items: list[str]) -> tuple[str, dict[str, Scalar], dict[str, list[Scalar]]]:
    """Return the preset's name, the common keys, and the values of the swept keys."""
    texts = {key: entries(text) for key, _, text in (item.partition("=") for item in items) if text}
    swept = {key: of_key for key, of_key in texts.items() if len(of_key) > 1}
    if not swept:
        raise ConfigError("give at least one key several values, as in learning-rate=0.03,0.1")
    fixed = [item for item in items if item.partition("=")[0] not in swept]
    first = {key: f"{key}={of_key[0]}" for key, of_key in swept.items()}
    values = {
        key: [
            read_items([*fixed, *{**first, key: f"{key}={text}"}.values()])[1][key]
            for text in of_key
        ]
        for key, of_key in swept.items()
    }
    preset, flat = read_items([*fixed, *first.values()])
    return preset, flat, values


def entries(text: str) -> list[str]:
    """Split "a, b, c" at commas; an entry in double quotes may contain commas."""
    return next(csv.reader([text], skipinitialspace=True))
