"""`coterie schema`: draft a schema.toml from tables, or show the digest of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tomli_w
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.institution.security.policy import DataPolicy
from coterie.app.runs import atomic
from coterie.datasets import account, leaks
from coterie.datasets.account import Account
from coterie.datasets.own import cells
from coterie.datasets.own.image_folder import surveyed
from coterie.datasets.own.institutions import words
from coterie.datasets.own.schema import FILE, Draft, described, digest, drafted, read_schema
from coterie.datasets.preprocessing import Column, Ints
from coterie.datasets.problem import DataError
from coterie.datasets.quality import ColumnQuality, grouped, remedy, survey_files

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 20
"""Maximum number of findings that are printed."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Draft a schema from the columns of tables, or show the digest of a schema."""
    parser.add_argument(
        "files", type=Path, nargs="+", metavar=f"TABLE.csv|TABLE.parquet|FOLDER|{FILE}"
    )
    parser.add_argument("--out", type=Path, help=f"({FILE} beside the first table)")
    parser.add_argument(
        "--label",
        default="",
        metavar="COLUMN",
        help="column to predict: name the columns that give it away",
    )
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
        if options.label:
            raise ConfigError("--label needs tables")
        schema = read_schema(first.parent)
    else:
        out = options.out or first.with_name(FILE)
        if out.exists():
            raise ConfigError(f"{out} exists already")
        tables, accounts = _opened(options.files, options.label)
        draft = drafted(tables, options.min_examples, words(options.na_values))
        schema = draft.schema
        if not schema:
            reasons = ", ".join(f"{name} ({why})" for name, why in draft.left_out.items())
            raise ConfigError(f"no column can be described: {reasons}")
        atomic.write(out, tomli_w.dumps(described(schema)))
        _print_draft(draft, [*tables.values()], options.min_examples, console)
        findings = [] if accounts else _findings([*tables.values()], draft, options.label)
        groups = grouped(findings, [*tables])
        for peers, each in groups[:_SHOWN]:
            console.print(f"{peers}: {each.finding}")
        if len(groups) > _SHOWN:
            console.print(f"{len(groups) - _SHOWN} more findings: correct these first")
        if advice := remedy(findings, "schema"):
            console.print(advice)
        for line in account.lines(accounts):
            console.print(line)
        rows = sum(table.num_rows for table in tables.values())
        console.print(
            f"{out}: mean and scale come from the {rows} rows of {', '.join(tables)}. Correct it, "
            "add units, and give it to the others: what it contains becomes public"
        )
    key = "image-folder" if schema.keys() & {"depth", "pixels"} else "table"
    console.print(f'{key}.schema = "{digest(schema)}"')


def _opened(
    files: Iterable[Path], label: str
) -> tuple[dict[str, pa.Table], dict[str, Account | None]]:
    """Read tables, or the properties of images in folders, whose accounts come second."""
    tables: dict[str, pa.Table] = {}
    accounts: dict[str, Account | None] = {}
    for path in files:
        if path.suffix not in cells.FORMATS and not path.is_dir():
            expected = f"expected {' or '.join(cells.FORMATS)}, or a folder of images"
            raise ConfigError(f"{path}: {expected}")
        try:
            if path.is_dir():
                tables[str(path)], accounts[str(path)] = surveyed(path)
            else:
                tables[str(path)] = cells.open_table(path)
            cells.require(tables[str(path)], [label] if label else [], path)
        except DataError as error:  # a RefusedError may show its entries here
            shown = ", ".join([f"{path}: {error}", *getattr(error, "entries", ())])
            raise ConfigError(shown) from None
    return tables, accounts


def _print_draft(
    draft: Draft, tables: Sequence[pa.Table], min_examples: int, console: Console
) -> None:
    """Print what the draft publishes, and what it leaves out, which stays in this terminal."""
    for name, why in draft.left_out.items():
        console.print(f"left out: {name}: {why}{_group(name, tables)}")
    for name, column in draft.schema.items():
        if column.categories:
            console.print(f"{name}: these values become public: {', '.join(column.categories)}")
        if rare := draft.rare.get(name):
            console.print(
                f"{name}: left out, in fewer than {min_examples} rows: {', '.join(rare)}; add "
                "those that may become public, or the rows are errors"
            )
        if outside := draft.unbounded.get(name):
            console.print(
                f"{name}: no range, because {outside} of its values lie far from the others: "
                "check them"
            )


def _group(name: str, tables: Iterable[pa.Table]) -> str:
    """Return the finding of a column of texts that may name patients; empty without one."""
    for table in tables:
        kind = str(table.column(name).type) if name in table.column_names else ""
        if kind in ("string", "large_string"):
            column = _of_texts(name, [table])
            codes = cells.encoded(table, [column])[0][:, 0]
            if leaks.pattern_of(codes, column, codes) == "group":
                return f"; {leaks.finding(name, 'group')}"
    return ""


def _of_texts(name: str, tables: Sequence[pa.Table]) -> Column:
    texts = {str(cell).strip() for table in tables for cell in table.column(name).to_pylist()}
    return Column(name, "category", tuple(sorted(texts)))


def _findings(tables: Sequence[pa.Table], draft: Draft, label: str | None) -> list[ColumnQuality]:
    """Return the quality of the drafted columns; with a label, which of them alone predict it."""
    rare = {name: [each.rpartition(" (")[0] for each in draft.rare[name]] for name in draft.rare}
    columns = [
        replace(column, categories=(*column.categories, *rare.get(name, ())))
        for name, column in draft.schema.items()
    ]
    classes: list[list[Ints]] = [[] for _ in tables]
    if label:
        column = draft.schema.get(label) or _of_texts(label, tables)
        values = np.concatenate([cells.encoded(table, [column])[0] for table in tables])
        (class_n,) = leaks.classes_of(values[:, 0] if column.categories else values)
        ends = np.cumsum([table.num_rows for table in tables])[:-1]
        classes = [[each] for each in np.split(class_n, ends)]
    files = {
        k: leaks.File(cells.encoded(table, columns)[0], classes[k])
        for k, table in enumerate(tables)
    }
    return survey_files(files, columns, label)
