"""`coterie schema`: draft a schema.toml from tables, or show the digest of one."""

from __future__ import annotations

import argparse
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.datasets.own import cells
from coterie.datasets.own.institutions import RefusedError, words
from coterie.datasets.own.schema import FILE, described, digest, drafted, read_schema
from coterie.datasets.quality import remedy, survey_tables

_SHOWN = 20
"""Maximum number of findings that are printed."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Draft a schema from the columns of tables, or show the digest of a schema."""
    parser.add_argument("files", type=Path, nargs="+", metavar=f"TABLE.csv|TABLE.parquet|{FILE}")
    parser.add_argument("--out", type=Path, help=f"({FILE} beside the first table)")
    parser.add_argument(
        "--na-values", default="", help='cells that mean a missing value, as in "unknown, -9"'
    )
    options = parser.parse_args(arguments)
    first = options.files[0]
    if len(options.files) == 1 and first.name == FILE:
        schema = read_schema(first.parent)
    else:
        out = options.out or first.with_name(FILE)
        if out.exists():
            raise ConfigError(f"{out} exists already")
        tables = {}
        for path in options.files:
            if path.suffix not in cells.FORMATS:
                raise ConfigError(f"{path}: expected {' or '.join(cells.FORMATS)}")
            try:
                tables[str(path)] = cells.open_table(path)
            except RefusedError as error:
                raise ConfigError(f"{path}: {error}: {', '.join(error.entries)}") from None
        schema, left_out = drafted(tables, words(options.na_values))
        if not schema:
            reasons = ", ".join(f"{name} ({why})" for name, why in left_out.items())
            raise ConfigError(f"no column can be described: {reasons}")
        atomic.write(out, tomli_w.dumps(described(schema)))
        for name, why in left_out.items():
            console.print(f"left out: {name}: {why}", soft_wrap=True)
        columns = tuple(schema.values())
        raw = {k: cells.encoded(table, columns)[0] for k, table in enumerate(tables.values())}
        findings = [each for each in survey_tables(raw, columns) if each.finding]
        for each in sorted(findings, key=lambda each: each.rank)[:_SHOWN]:
            console.print(f"{options.files[each.peer]}: {each.finding}", soft_wrap=True)
        if advice := remedy(findings, "schema"):
            console.print(advice, soft_wrap=True, markup=False)
        console.print(f"{out}: correct it, add units, and give it to the others", soft_wrap=True)
    console.print(f'table.schema = "{digest(schema)}"')
