"""`coterie schema`: draft a schema.toml from tables, or show the digest of one."""

from __future__ import annotations

import argparse
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.security.policy import DataPolicy
from coterie.datasets.own import cells
from coterie.datasets.own.institutions import words
from coterie.datasets.own.schema import (
    FILE,
    Draft,
    alike,
    described,
    digest,
    drafted,
    read_schema,
)
from coterie.datasets.problem import DataError
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
    parser.add_argument(
        "--min-examples", type=int, default=DataPolicy().min_examples,
        help="minimum number of rows behind a category or number in the draft (%(default)s)",
    )  # fmt: skip
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
            except DataError as error:  # a RefusedError may show its entries here
                shown = ", ".join([f"{path}: {error}", *getattr(error, "entries", ())])
                raise ConfigError(shown) from None
        draft = drafted(tables, options.min_examples, words(options.na_values))
        schema = draft.schema
        if not schema:
            reasons = ", ".join(f"{name} ({why})" for name, why in draft.left_out.items())
            raise ConfigError(f"no column can be described: {reasons}")
        atomic.write(out, tomli_w.dumps(described(schema)))
        _print_draft(draft, options.min_examples, console)
        columns = tuple(schema.values())
        raw = {k: cells.encoded(table, columns)[0] for k, table in enumerate(tables.values())}
        findings = [each for each in survey_tables(raw, columns) if each.finding]
        for each in sorted(findings, key=lambda each: each.rank)[:_SHOWN]:
            console.print(f"{options.files[each.peer]}: {each.finding}", soft_wrap=True)
        if advice := remedy(findings, "schema"):
            console.print(advice, soft_wrap=True, markup=False)
        rows = sum(table.num_rows for table in tables.values())
        console.print(
            f"{out}: mean and scale come from the {rows} rows of {', '.join(tables)}. Correct it, "
            "add units, and give it to the others: what it contains becomes public",
            soft_wrap=True,
        )
    console.print(f'table.schema = "{digest(schema)}"')


def _print_draft(draft: Draft, min_examples: int, console: Console) -> None:
    """Print what the draft publishes, and what it leaves out, which stays in this terminal."""

    def line(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    for name, why in draft.left_out.items():
        line(f"left out: {name}: {why}")
    for name, column in draft.schema.items():
        if column.categories:
            line(f"{name}: these values become public: {', '.join(column.categories)}")
        for group in alike(column.categories):
            line(
                f"{name}: did you mean one value by {', '.join(group)}? Write it the same way in "
                "all tables, or these stay different categories"
            )
        if rare := draft.rare.get(name):
            line(
                f"{name}: left out, in fewer than {min_examples} rows: {', '.join(rare)}; add "
                "those that may become public, or the rows are errors"
            )
        if outside := draft.unbounded.get(name):
            line(
                f"{name}: no range, because {outside} of its values lie far from the others: "
                "check them"
            )
