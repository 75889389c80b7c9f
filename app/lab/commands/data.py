"""`coterie data`: list public data sets of several institutions, and fetch one."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.app.config.config import Config
from coterie.app.config.keys import ConfigError, nearest
from coterie.app.lab.catalogue.fetch import fetch
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.runs import units


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """List the catalogue, or write the tables of one data set."""
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("list", help="list data sets with licence and source")
    get = commands.add_parser("fetch", help="write a folder per institution to data-dir")
    get.add_argument("name", metavar="NAME", help=", ".join(SETS))
    get.add_argument("--out", type=Path, default=Path(Config.data_dir), help="data-dir (data)")
    get.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="folder with the original files, instead of a download",
    )
    options = parser.parse_args(arguments)
    if options.what == "list":
        console.print(catalogue())
        console.print("coterie data fetch NAME writes the tables; the original files are not kept")
    else:
        _fetch(options.name, options.out, options.source, console)


def catalogue() -> Table:
    """Return the catalogue as a table of names and descriptions."""
    table = Table(box=SIMPLE_HEAD, leading=1)
    table.add_column("name", no_wrap=True)
    table.add_column("description", overflow="fold")
    for name, entry in SETS.items():
        lines = [
            f"{entry.task}; {entry.examples:,} rows, {entry.institutions} {entry.members}",
            entry.source,
            f"licence: {entry.licence}",
            *(f"{file.url}\nSHA-256 {file.sha256}" for file in entry.files),
        ]
        table.add_row(name, "\n".join(lines if entry.files else [*lines, "included"]))
    return table


def _fetch(name: str, out: Path, source: Path | None, console: Console) -> None:
    if name not in SETS:
        raise ConfigError(f'unknown data set "{name}"{nearest(name, list(SETS))}')
    entry, target = SETS[name], out / name
    for file in () if source is not None else entry.files:
        console.print(f"from {file.url} ({units.size(file.size)})")
    if fetch(name, entry, out, source):
        console.print(
            f"{target}: {entry.examples:,} rows of {entry.institutions} {entry.members}; "
            f"licence: {entry.licence}"
        )
    else:
        console.print(f"{target} is there already")
    place = "" if out == Path(Config.data_dir) else f" data-dir={target}"
    console.print(f"coterie run institutions/{name}{place}")
    console.print(f"coterie compare institutions/{name}{place} --methods local,fedavg,dpfl")
