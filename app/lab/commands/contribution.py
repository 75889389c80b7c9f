"""`coterie contribution`: measure how much each peer's letters help every other peer of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_parts, add_workers, continued
from coterie.app.lab.pages.worth import by_recipient, by_sender
from coterie.app.lab.worth import FOLDER, worth
from coterie.app.report import run_page
from coterie.app.report.worth import FILE
from coterie.app.runs import quality
from coterie.app.runs.rundir import Run


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Execute a simulation again without the letters of some peers, and print the worth of each."""
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--orders", type=int, default=10, metavar="N",
        help="random orders of the senders for Shapley values, an even number (10); "
        "0: leave-one-out only",
    )  # fmt: skip
    add_workers(parser)
    add_parts(parser)
    options = parser.parse_args(arguments)
    with continued("contribution", arguments, options.run_dir / FOLDER):
        result = worth(options.run_dir, console, orders=options.orders, workers=options.workers,
                       parts=options.part)  # fmt: skip
    run = Run.read(options.run_dir)
    unjudged = quality.too_few_rows(run, result.measure.partition("_")[0])
    result = result.judged(run)
    page = run_page.write(options.run_dir)
    console.print(by_recipient(result, run.names, unjudged))
    console.print(by_sender(result, run.names))
    console.print(f"table: {options.run_dir / FILE}")
    console.print(f"report: {options.run_dir / page.file}")
