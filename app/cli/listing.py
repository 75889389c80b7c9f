"""What there is to choose from: `coterie list`."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.app.config import parts, schema
from coterie.app.config.keys import ConfigError, nearest, tables
from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from coterie.clients.models.options import MODELS
from coterie.datasets import plugins
from coterie.datasets.partition.kinds import KINDS
from coterie.datasets.table import DATASETS

_MARKS = ("reproduces", "needs", "takes")
"""What the head of a preset may say, in the order in which it is shown."""

CHOICES = {
    "Peers differ, and it is not known who is alike": (
        *("cobo", "all-for-one", "federico", "dpfl", "fedfomo", "pfedgraph"),
        "federated-clustering",
    ),
    "There are a few groups": ("ifca", "clustered-fl", "fedem"),
    "Peers share most of a model, each has a part or a copy of its own": (
        *("fedavg-ft", "fedprox-ft", "ditto", "apfl", "perfedavg", "fedrep", "knn-per"),
    ),
    "A few peers want the help of others": ("wga", "bias-correction"),
    "Everybody is alike": ("fedavg", "fedprox"),
    "Yardsticks, to run beside any of them": ("local", "oracle", "random-graph"),
}
"""When to choose which methods."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print an overview, one of the tables, or the keys of one name."""
    parser.add_argument("what", nargs="?", help=f"{', '.join(LISTS)}, or a name in one of them")
    what = parser.parse_args(arguments).what
    if what is None:
        console.print(overview())
        console.print("coterie list WHAT says more of each; list NAME its keys")
    elif what in LISTS:
        console.print(LISTS[what]())
    elif what in tables():
        console.print(_keys(what))
    elif what in {*METHODS, *MODELS, *DATASETS}:
        console.print(f"{what} has no keys of its own")
    elif keys := _keys_of_plugin(what):
        console.print(keys)
    else:
        raise ConfigError(f'nothing is called "{what}"{nearest(what, [*LISTS, *tables()])}')


def overview() -> Table:
    """All names, on one screen."""
    folder = ROOT / "presets"
    of_folder = ", ".join(sorted(f"{path.name}/..." for path in folder.iterdir()))
    rows = [
        ("methods", ", ".join(METHODS)),
        ("datasets", ", ".join(DATASETS)),
        ("partitions", ", ".join(KINDS)),
        ("models", ", ".join(MODELS)),
        ("presets", of_folder),
    ]
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def methods() -> Table:
    """Every method, under what it is to be chosen for."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("what it does")
    for when, names in CHOICES.items():
        table.add_section()
        table.add_row("", Text(when, style="bold"))
        for name in names:
            mark = " (needs validation data)" if METHODS[name].validates else ""
            table.add_row(name, METHODS[name].summary + mark)
    if plugins.installed("method"):
        table.add_section()
        table.add_row("", Text("Installed here", style="bold"))
        for name, entry in plugins.installed("method").items():
            table.add_row(name, entry.value)
    return table


def datasets() -> Table:
    """Every dataset and what it needs."""
    rows = ((name, dataset.description, dataset.needs) for name, dataset in DATASETS.items())
    theirs = ((name, entry.value, "") for name, entry in plugins.installed("dataset").items())
    return _table("datasets", ("dataset", "what it is", "what it needs"), [*rows, *theirs])


def partitions() -> Table:
    """Every way to split a dataset among peers."""
    rows = ((name, kind.description) for name, kind in KINDS.items())
    theirs = ((name, entry.value) for name, entry in plugins.installed("partition").items())
    return _table("partitions", ("partition.kind", "what peers get"), [*rows, *theirs])


def models() -> Table:
    """Every model with its option keys."""
    rows = ((name, summary, _keys(name)) for name, summary in MODELS.items())
    theirs = ((name, entry.value, "") for name, entry in plugins.installed("model").items())
    return _table("models", ("model", "what it is", "options and defaults"), [*rows, *theirs])


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


def _keys_of_plugin(name: str) -> str:
    """The option keys of an installed plugin; nothing where there is none of that name.

    Raises
    ------
    ConfigError
        It does not load.
    """
    said: list[str] = []
    for kind, part in parts.PARTS.items():
        if name in plugins.installed(kind):
            for table, options in parts.plugin_tables({part.key: name}).items():
                for key, (field, _) in schema.keys(options).items():
                    value = getattr(options, field, None)  # a dataclass keeps its defaults
                    default = "" if value is None else f" = {schema.written(value)}"
                    said.append(f"{table}.{key}{default}")
    return "\n".join(said)


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    for column in columns:
        whole = column == columns[0]  # a name is there to be copied
        table.add_column(column, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table
