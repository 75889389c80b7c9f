"""`coterie figures`: write the figures of a run or a comparison as files for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write a file per figure, and say which ones there are no data for."""
    parser.add_argument("directory", type=Path, metavar="RUN_OR_COMPARISON")
    parser.add_argument("--format", choices=("pdf", "svg", "png"), default="pdf", help="(pdf)")
    parser.add_argument("--out", type=Path, help="directory (figures in the run or comparison)")
    options = parser.parse_args(arguments)
    from coterie.app.report import figures  # matplotlib: not for --help

    out = options.out or options.directory / "figures"
    paths, missing = figures.write(figures.of(options.directory), out, options.format)
    for path in paths:
        console.print(str(path), soft_wrap=True)
    if missing:
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in missing.items())
        console.print(f"not drawn: {reasons}", soft_wrap=True, markup=False)
