"""`coterie report`: write summary and report of a run, finished or not, again."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.runners.finish import finish


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write summary.json, graph.csv and report.html again, and print the summary."""
    parser.add_argument("run_dir", type=Path)
    finish(parser.parse_args(arguments).run_dir, console)
