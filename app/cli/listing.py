"""What there is to choose from: `python -m app list`."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.config import schema
from app.config.keys import tables
from app.config.registry import METHODS
from app.config.root import ROOT
from clients.models.options import MODELS
from datasets.partition.kinds import KINDS
from datasets.table import DATASETS

_MARKS = ("reproduces", "needs", "takes")
"""What the head of a preset may say, in the order in which it is shown."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print one or all of the tables."""
    parser.add_argument("what", nargs="?", choices=LISTS)
    what = parser.parse_args(arguments).what
    for name in [what] if what else LISTS:
        console.print(LISTS[name]())


def methods() -> Table:
    """Every method with its option keys."""
    rows = ((name, method.summary, _keys(name)) for name, method in METHODS.items())
    return _table("methods", ("method", "what it does", "options and defaults"), rows)


def datasets() -> Table:
    """Every dataset and what it needs."""
    rows = ((name, dataset.description, dataset.needs) for name, dataset in DATASETS.items())
    return _table("datasets", ("dataset", "what it is", "what it needs"), rows)


def partitions() -> Table:
    """Every way to split a dataset among peers."""
    rows = ((name, kind.description) for name, kind in KINDS.items())
    return _table("partitions", ("partition.kind", "what peers get"), rows)


def models() -> Table:
    """Every model with its option keys."""
    rows = ((name, summary, _keys(name)) for name, summary in MODELS.items())
    return _table("models", ("model", "what it is", "options and defaults"), rows)


def presets() -> Table:
    """Every preset: what it reproduces, what it needs and how long it takes, as far as known."""
    folder = ROOT / "presets"
    rows = []
    for path in sorted(folder.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        said = notes(text)
        data = DATASETS[tomllib.loads(text)["dataset"]].needs
        said["needs"] = "; ".join(filter(None, (data, said.get("needs"))))
        lines = [said[""], *(f"{mark} {said[mark]}" for mark in _MARKS if mark in said)]
        rows.append((str(path.relative_to(folder).with_suffix("")), "\n".join(lines)))
    return _table("presets", ("preset", "what it is"), rows)


def notes(preset: str) -> dict[str, str]:
    """What the comment lines at the head of a preset say.

    Returns
    -------
    "" -> the first line; "reproduces", "needs" and "takes" -> the rest of a line "# Needs: ...".
    """
    lines = [line[1:].strip() for line in preset.splitlines() if line.startswith("#")]
    marks = (line.partition(": ") for line in lines[1:])
    keyed = {key.lower(): said for key, _, said in marks if key.lower() in _MARKS}
    return {"": lines[0] if lines else "", **keyed}


LISTS = {
    "methods": methods,
    "datasets": datasets,
    "partitions": partitions,
    "models": models,
    "presets": presets,
}


def _keys(table: str) -> str:
    options = schema.defaults(tables()[table]) if table in tables() else {}
    return "\n".join(f"{table}.{key} = {schema.written(value)}" for key, value in options.items())


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    for column in columns:
        whole = column == columns[0]  # a name is there to be copied
        table.add_column(column, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table
