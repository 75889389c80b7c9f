"""`coterie league`: all methods on the same problems, tuned equally; run, show, check."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from rich.console import Console

from coterie.app.cli import named
from coterie.app.config import parts
from coterie.app.config.keys import ConfigError
from coterie.app.lab import league as runner
from coterie.app.lab.pages import league
from coterie.errors import SweepError

_NOTE = (
    "Test accuracy in percent: mean over peers, lowest peer, and, where measured, under the "
    "problem's attack and with its differential privacy, of a single run (tuning and other seeds "
    "on the same data add to its epsilon). To best: "
    "bytes sent per peer until 90 % of the best gain over local. Bold: the best of a column, and "
    "those not significantly worse (paired test over seeds and peers). *: not ranked, it is given "
    "the true clusters."
)


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Measure missing cells, print tables, or run a cell again."""
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="measure the cells that are missing")
    run.add_argument("problems", nargs="*", metavar="PROBLEM", help="all problems by default")
    run.add_argument("--methods", help="names with commas; plugins too (all methods and recipes)")
    named.add_workers(run)
    show = commands.add_parser("show", help="print the tables")
    show.add_argument("problems", nargs="*", metavar="PROBLEM", help="all problems by default")
    check = commands.add_parser("check", help="run a cell again and compare it to the digit")
    check.add_argument("cell", nargs="*", metavar="PROBLEM METHOD COLUMN", help="random by default")
    for command in (run, show, check):
        named.add_parts(command)
        command.add_argument(
            "--directory", type=Path, default=Path("league"), help="files of the league (league)"
        )
    options = parser.parse_args(arguments)
    if options.what == "check":
        _check(options, console)
    elif options.what == "show":
        _print_tables(options, console)
    else:
        with named.continued("league", arguments, Path()):
            _run(options, console)


def _run(options: argparse.Namespace, console: Console) -> None:
    names = options.problems or list(league.problems(options.directory))
    methods = options.methods.split(",") if options.methods else runner.entrants()
    for method in methods:
        parts.chosen({"method": method})
    runner.run(
        names, methods, options.directory, options.workers, console, (*methods, *options.part)
    )
    _print_tables(options, console)


def _print_tables(options: argparse.Namespace, console: Console) -> None:
    for name in options.problems or league.problems(options.directory):
        problem = league.problem(name, options.directory, options.part)
        table = league.table(problem.measured(league.read(name, options.directory)), problem.keys)
        if table.rows:
            console.print(league.in_terminal(f"{problem.title} ({name})", table))
            if problem.legend:
                console.print(problem.legend)
    console.print(_NOTE)


def _check(options: argparse.Namespace, console: Console) -> None:
    """Run a cell again, drawn from those that the arguments leave open; it must not differ."""
    names = options.cell[:1] or list(league.problems(options.directory))
    problems = {
        name: league.problem(name, options.directory, (*options.cell, *options.part))
        for name in names
    }
    cells = [
        (name, method, column, cell)
        for name in names
        for (method, column), cell in problems[name]
        .measured(league.read(name, options.directory))
        .items()
        if cell.values and all(each in (method, column) for each in options.cell[1:])
        if ":" not in method or method in options.cell
    ]
    if not cells:
        raise ConfigError(f"no measured cell {' '.join(options.cell)} in {options.directory}")
    name, method, column, cell = random.choice(cells)
    console.print(f"coterie league check {name} {method} {column}")
    differences = runner.repeat(problems[name], method, column, cell, console)
    for kept, new in differences:
        console.print(f"kept {kept}\nnow  {new}", style="red")
    if differences:
        raise SweepError(f"{len(differences)} of {len(cell.values)} seeds differ")
    console.print("the same to the digit")
