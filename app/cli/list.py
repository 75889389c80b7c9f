"""`coterie list`: parts to choose from, and the keys of each."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coterie.app.config import parts, schema
from coterie.app.config.keys import ConfigError, nearest
from coterie.app.config.recipes import Recipe, recipes
from coterie.app.config.registry import GROUPS, METHODS, YARDSTICKS
from coterie.app.config.root import ROOT
from coterie.app.config.settings import keys, options_in, tables
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.datasets.table import DATASETS
from coterie.ranges import Option, options_of

_MARKS = ("reproduces", "needs", "takes")
"""Marks of the comments at the head of a preset, in the order of the list."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print an overview, a list, or the keys of one name with their meaning."""
    parser.add_argument("what", nargs="?", help=f"{', '.join(LISTS)}, a name, a table or a key")
    what = parser.parse_args(arguments).what
    if what is None:
        console.print(overview())
        console.print("coterie list LIST describes each; coterie list NAME explains its keys")
    elif what in LISTS:
        console.print(LISTS[what]())
    else:
        console.print(about(what))


def about(name: str) -> Group:
    """Describe a key, a recipe, a part or a table: keys with values, default and meaning."""
    kinds = [kind for kind, part in parts.PARTS.items() if name in _names(kind)]
    options = {name: options_in(name)} if name in tables() else {}
    for kind in kinds:
        theirs = parts.plugin_tables({parts.PARTS[kind].key: name})
        options |= {table: options_of(of) for table, of in theirs.items()}
    lines: list[RenderableType] = []
    if name in keys():
        table, option = keys()[name]
        lines.append(explained(table, {option.key: option}, with_grid=False))
    if name in recipes():
        lines.append(Text(_described(recipes()[name])))
    lines += [f"{name}: {_summary(kind, name)}" for kind in kinds]
    lines += [explained(table, of) for table, of in options.items()]
    if "partition" in kinds:
        used = {key: each for key, each in options_in("partition").items() if name in each.used_by}
        if used:
            lines.append(explained("partition", used))
            options |= {"partition": used}
    if not lines:
        known = [*LISTS, *tables(), *recipes(), *keys()]
        raise ConfigError(f'unknown name "{name}"{nearest(name, known)}')
    return Group(*lines, *([f"{name} has no keys of its own"] if kinds and not options else []))


def explained(table: str, options: Mapping[str, Option], *, with_grid: bool = True) -> Group:
    """Return default, values and meaning of options of a table."""
    lines: list[RenderableType] = []
    for option in options.values():
        head = Text(_assigned(table, option), style="bold")
        lines.append(head.append(f"  ({option.values})", style="not bold"))
        meaning = option.text
        if option.grid and with_grid:
            tried = ", ".join(map(schema.written, option.grid))
            meaning = f"{meaning} compare --tune tries {tried}."
        lines.append(Padding(Text(meaning.strip()), (0, 0, 0, 4), expand=False))
    return Group(*lines)


def _assigned(table: str, option: Option) -> str:
    """Return "table.key = default"; without "= default" if there is none."""
    dotted = f"{table}.{option.key}" if table else option.key
    return dotted if option.default is MISSING else f"{dotted} = {schema.written(option.default)}"


def _names(kind: Kind) -> list[str]:
    """Return the names of the built-in parts and the installed plugins of a kind."""
    return [*parts.PARTS[kind].built_in, *plugins.installed(kind)]


def _summary(kind: Kind, name: str) -> str:
    """Return the description of a built-in part or a plugin, or the reason why it does not load."""
    try:
        row = parts.PARTS[kind].row(name)
    except plugins.PluginError as error:
        return str(error)
    needs_validation = kind == "method" and row.validates
    return f"{row.summary}{' (needs validation data)' if needs_validation else ''}"


def overview() -> Table:
    """Return all names, on one screen."""
    paths = sorted((ROOT / "presets").iterdir())
    of_folder = ", ".join(f"{path.name}/..." if path.is_dir() else path.stem for path in paths)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for kind in parts.PARTS:
        table.add_row(_title(kind), ", ".join(_names(kind)))
    table.add_row("recipes", ", ".join(recipes()))
    table.add_row("presets", of_folder)
    return table


def rows(kind: Kind) -> Table:
    """Return the built-in rows and the installed plugins of a kind."""
    if kind == "method":
        return methods()
    part = parts.PARTS[kind]
    extra = {"dataset": ("needs",), "model": ("options and defaults",)}.get(kind, ())
    lines = [(name, _summary(kind, name), *_extra(kind, name)) for name in part.built_in]
    installed = plugins.installed(kind)
    lines += [(name, _summary(kind, name), *("" for _ in extra)) for name in installed]
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
        for name, method in {**METHODS, **YARDSTICKS}.items():
            if method.group == group:
                table.add_row(name, _summary("method", name))
    if plugins.installed("method"):
        table.add_section()
        table.add_row("", Text("Installed plugins", style="bold"))
        for name in plugins.installed("method"):
            table.add_row(name, _summary("method", name))
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

    "" has the first line; "reproduces", "needs" and "takes" the rest of a line "# Needs: ...".
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
    options = options_in(table) if table in tables() else {}
    return "\n".join(_assigned(table, option) for option in options.values())


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    for column in columns:
        whole = column == columns[0]  # names are not wrapped, so that they can be copied
        table.add_column(column, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    return table
