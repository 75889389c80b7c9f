"""`coterie schema`: draft a schema.toml from a table, or show the digest of one."""

from __future__ import annotations

import argparse
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.datasets.own import cells
from coterie.datasets.own.schema import FILE, described, digest, drafted, read_schema


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Draft a schema from a table's columns, or show the digest of a schema."""
    parser.add_argument("file", type=Path, metavar=f"TABLE.csv|TABLE.parquet|{FILE}")
    parser.add_argument("--out", type=Path, help=f"({FILE} beside the table)")
    options = parser.parse_args(arguments)
    if options.file.name == FILE:
        schema = read_schema(options.file.parent)
    else:
        out = options.out or options.file.with_name(FILE)
        if out.exists():
            raise ConfigError(f"{out} exists already")
        if options.file.suffix not in cells.FORMATS:
            raise ConfigError(f"{options.file}: expected {' or '.join(cells.FORMATS)}")
        schema, left_out = drafted(cells.open_table(options.file))
        atomic.write(out, tomli_w.dumps(described(schema)))
        if left_out:
            console.print(f"left out, neither numbers nor categories: {', '.join(left_out)}")
        console.print(f"{out}: correct it, add units and ranges, and give it to the others")
    console.print(f'table.schema = "{digest(schema)}"')
