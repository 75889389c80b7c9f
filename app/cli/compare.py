"""`coterie compare`: run an experiment for several methods and seeds, and compare them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import get_args

from rich.console import Console

from coterie.app.cli.named import add_comparison, continued
from coterie.app.comparisons.run import Baselines, ComparisonRequest, compare
from coterie.app.config.items import read_items, read_pair
from coterie.app.config.keys import ConfigError
from coterie.app.config.schema import Scalar
from coterie.app.runs.terminal import Terminal, add_json


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Run a comparison and print its table."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")
    _add_options(parser)
    add_json(parser, "the comparison")
    command = shlex.join(["coterie", "compare", *arguments, "--tune"])
    options = parser.parse_intermixed_args(arguments)
    request = _request(options, command)
    with continued("compare", arguments, request.directory):
        page = compare(request, Terminal(stderr=True) if options.json else console)
    if options.json:
        print((page.parent / "comparison.json").read_text(encoding="utf-8"), end="")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", required=True, help='names with commas, or "all"')
    add_comparison(parser, "compare")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="METHOD:KEY=VALUE",
        help="a key of one method alone, as in ditto:learning-rate=0.1; may be repeated",
    )
    parser.add_argument(
        "--tune",
        action="store_const",
        const="whole",
        help="choose each method's learning rate and one more key on validation data",
    )
    parser.add_argument(
        "--halving",
        dest="tune",
        action="store_const",
        const="halving",
        help="tune with successive halving: stop poor trials early",
    )
    parser.add_argument(
        "--yardsticks",
        choices=get_args(Baselines),
        default="auto",
        help="rows by scikit-learn in comparisons of tables (auto)",
    )
    parser.add_argument(
        "--clearance",
        action="store_true",
        help="measure what the letters of each method tell about training examples",
    )


def _request(options: argparse.Namespace, command: str) -> ComparisonRequest:
    """Return the request of the options; `command` would tune it."""
    preset, flat = read_items(options.items)
    if options.clearance:
        flat = {**flat, "clearance": True}
    return ComparisonRequest(
        title=preset,
        keys=flat,
        methods=options.methods.split(","),
        directory=Path(options.out or Path(str(flat.get("out", "runs")), "compare", preset)),
        numbered=options.out is None,
        command="" if options.tune else command,
        seeds=options.seeds,
        tuning=options.tune,
        workers=options.workers,
        settings=_settings(options.set),
        yardsticks=options.yardsticks,
    )


def _settings(items: list[str]) -> dict[str, dict[str, Scalar]]:
    """Return method -> keys of that method alone, from items METHOD:KEY=VALUE."""
    settings: dict[str, dict[str, Scalar]] = {}
    for item in items:
        method, _, pair = item.partition(":")
        if not pair or "=" not in pair or "=" in method:
            raise ConfigError(f'--set "{item}": must be METHOD:KEY=VALUE')
        settings.setdefault(method, {}).update([read_pair(pair)])
    return settings
