"""`coterie list`: methods, data sets, models and other parts to choose from."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.app.config import parts, schema
from coterie.app.config.keys import ConfigError, nearest, tables
from coterie.app.config.recipes import Recipe, recipes
from coterie.app.config.registry import GROUPS, METHODS
from coterie.app.config.root import ROOT
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.datasets.table import DATASETS

_MARKS = ("reproduces", "needs", "takes")
"""Marks of the comments at the head of a preset, in the order of the list."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print an overview, a list, or the keys of one name."""
    parser.add_argument("what", nargs="?", help=f"{', '.join(LISTS)}, or a name")
    what = parser.parse_args(arguments).what
    if what is None:
        console.print(overview())
        console.print("coterie list LIST describes each; coterie list NAME shows its keys")
    elif what in LISTS:
        console.print(LISTS[what]())
    elif what in tables():
        console.print(_keys(what))
    elif what in recipes():
        console.print(_described(recipes()[what]), markup=False, highlight=False)
    elif any(what in part.built_in for part in parts.PARTS.values()):
        console.print(f"{what} has no keys")
    elif keys := _keys_of_plugin(what):
        console.print(keys)
    else:
        raise ConfigError(f'unknown name "{what}"{nearest(what, [*LISTS, *tables(), *recipes()])}')


def overview() -> Table:
    """Return all names, on one screen."""
    folder = ROOT / "presets"
    of_folder = ", ".join(sorted(f"{path.name}/..." for path in folder.iterdir()))
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for kind, part in parts.PARTS.items():
        table.add_row(_title(kind), ", ".join([*part.built_in, *plugins.installed(kind)]))
    table.add_row("recipes", ", ".join(recipes()))
    table.add_row("presets", of_folder)
    return table


def rows(kind: Kind) -> Table:
    """Return the built-in rows and the installed plugins of a kind."""
    if kind == "method":
        return methods()
    part = parts.PARTS[kind]
    extra = {"dataset": ("needs",), "model": ("options and defaults",)}.get(kind, ())
    lines = [(name, row.summary, *_extra(kind, name)) for name, row in part.built_in.items()]
    for name, entry in plugins.installed(kind).items():
        lines.append((name, entry.value, *("" for _ in extra)))
    return _table(_title(kind), (part.key, "description", *extra), lines)


def _extra(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the cells of a built-in row in the columns that only its kind has."""
    if kind == "dataset":
        return (DATASETS[name].needs,)
    return (_keys(name),) if kind == "model" else ()


def methods() -> Table:
    """Return the methods by the situation in which to choose them."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("description")
    for group, situation in GROUPS.items():
        table.add_section()
        table.add_row("", Text(situation, style="bold"))
        for name, method in METHODS.items():
            if method.group == group:
                mark = " (needs validation data)" if method.validates else ""
                table.add_row(name, method.summary + mark)
    if plugins.installed("method"):
        table.add_section()
        table.add_row("", Text("Installed plugins", style="bold"))
        for name, entry in plugins.installed("method").items():
            table.add_row(name, entry.value)
    return table


def recipe_table() -> Table:
    """Return the recipes with the built-in method and the keys that each stands for."""
    rows = [
        (name, f"{recipe.title}: {recipe.summary}", _keys_of_recipe(recipe))
        for name, recipe in recipes().items()
    ]
    return _table("recipes", ("method", "description", "is short for"), rows)


def _keys_of_recipe(recipe: Recipe) -> str:
    if recipe.missing:
        return f"missing: {recipe.missing}"
    return "\n".join(f"{key} = {schema.written(value)}" for key, value in recipe.keys.items())


def _described(recipe: Recipe) -> str:
    """Return title, paper, note and keys of a recipe."""
    lines = (f"{recipe.title}: {recipe.summary}", recipe.reference, recipe.note)
    return "\n".join([*filter(None, lines), _keys_of_recipe(recipe)])


def presets() -> Table:
    """Return the presets, with results that they reproduce, requirements and duration if known."""
    folder = ROOT / "presets"
    rows = []
    for path in sorted(folder.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        head = notes(text)
        data = DATASETS[tomllib.loads(text)["dataset"]].needs
        head["needs"] = "; ".join(filter(None, (data, head.get("needs"))))
        lines = [head[""], *(f"{mark} {head[mark]}" for mark in _MARKS if mark in head)]
        rows.append((str(path.relative_to(folder).with_suffix("")), "\n".join(lines)))
    return _table("presets", ("preset", "description"), rows)


def notes(preset: str) -> dict[str, str]:
    """Parse the comment lines at the head of a preset.

    Returns
    -------
    dict of str to str
        "": the first line; "reproduces", "needs" and "takes": the rest of a line "# Needs: ...".
    """
    lines = [line[1:].strip() for line in preset.splitlines() if line.startswith("#")]
    marks = (line.partition(": ") for line in lines[1:])
    keyed = {key.lower(): text for key, _, text in marks if key.lower() in _MARKS}
    return {"": lines[0] if lines else "", **keyed}


def _title(kind: Kind) -> str:
    return plugins.GROUPS[kind].removeprefix("coterie.")


LISTS: Mapping[str, Callable[[], Table]] = {
    **{_title(kind): partial(rows, kind) for kind in parts.PARTS},
    "recipes": recipe_table,
    "presets": presets,
}
"""Name of a list -> function that makes its table."""


def _keys(table: str) -> str:
    options = schema.defaults(tables()[table]) if table in tables() else {}
    return "\n".join(f"{table}.{key} = {schema.written(value)}" for key, value in options.items())


def _keys_of_plugin(name: str) -> str:
    """Return the option keys of an installed plugin; empty if no plugin has that name.

    Raises
    ------
    ConfigError
        The plugin fails to load.
    """
    lines: list[str] = []
    for kind, part in parts.PARTS.items():
        if name in plugins.installed(kind):
            for table, options in parts.plugin_tables({part.key: name}).items():
                for key, (field, _) in schema.keys(options).items():
                    value = getattr(options, field, None)  # a dataclass keeps its defaults
                    default = "" if value is None else f" = {schema.written(value)}"
                    lines.append(f"{table}.{key}{default}")
    return "\n".join(lines)


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    for column in columns:
        whole = column == columns[0]  # names are not wrapped, so that they can be copied
        table.add_column(column, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table
