"""`coterie list`: parts to choose from, and the keys of each."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Callable, Mapping
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
from coterie.app.runs.terminal import add_json
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.datasets.table import DATASETS
from coterie.ranges import Option, options_of

Entry = dict[str, str]
"""Row of a list: column -> text."""
_MARKS = ("reproduces", "needs", "takes")
"""Marks of the comments at the head of a preset, in the order of the list."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print an overview, a list, or the keys of one name with their meaning."""
    parser.add_argument("what", nargs="?", help=f"{', '.join(LISTS)}, a name, a table or a key")
    add_json(parser, "all lists, or one")
    options = parser.parse_args(arguments)
    if options.json:
        if options.what and options.what not in LISTS:
            raise ConfigError(f"--json is for lists: {', '.join(LISTS)}")
        content = {name: rows() for name, rows in LISTS.items() if options.what in (None, name)}
        print(json.dumps(content, indent=2))
    elif options.what is None:
        console.print(overview())
        console.print("coterie list LIST describes each; coterie list NAME explains its keys")
    elif options.what in LISTS:
        console.print(table(LISTS[options.what]()))
    else:
        console.print(about(options.what))


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
        recipe = recipes()[name]
        head = (f"{recipe.title}: {recipe.summary}", recipe.reference, recipe.note)
        lines.append(Text("\n".join([*filter(None, head), _keys_of_recipe(recipe)])))
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


def of_kind(kind: Kind) -> list[Entry]:
    """Return the built-in parts and the installed plugins of a kind; methods by situation."""
    entries = [{"name": name, "description": _summary(kind, name)} for name in _names(kind)]
    if kind == "dataset":
        return [each | {"needs": _needs(each["name"])} for each in entries]
    if kind == "model":
        for each in entries:
            options = options_in(each["name"]) if each["name"] in tables() else {}
            keys_of = [_assigned(each["name"], option) for option in options.values()]
            each["options"] = "\n".join(keys_of)
        return entries
    if kind != "method":
        return entries
    methods = {**METHODS, **YARDSTICKS}
    group = {name: GROUPS[of.group] for name, of in methods.items() if of.group}
    entries = [each | {"group": group.get(each["name"], "Installed plugins")} for each in entries]
    order = [*GROUPS.values(), "Installed plugins"]
    return sorted(entries, key=lambda each: order.index(each["group"]))


def of_recipes() -> list[Entry]:
    """Return the recipes with the built-in method and the keys that each stands for."""
    return [
        {
            "name": name,
            "description": f"{recipe.title}: {recipe.summary}",
            "is short for": _keys_of_recipe(recipe),
        }
        for name, recipe in recipes().items()
    ]


def _keys_of_recipe(recipe: Recipe) -> str:
    if recipe.missing:
        return f"missing: {recipe.missing}"
    return "\n".join(f"{key} = {schema.written(value)}" for key, value in recipe.keys.items())


def of_presets() -> list[Entry]:
    """Return the presets, with results that they reproduce, requirements and duration if known."""
    folder, entries = ROOT / "presets", []
    for path in sorted(folder.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        head = notes(text)
        data = _needs(tomllib.loads(text)["dataset"])
        head["needs"] = "; ".join(filter(None, (data, head.get("needs"))))
        lines = [head[""], *(f"{mark} {head[mark]}" for mark in _MARKS if mark in head)]
        name = str(path.relative_to(folder).with_suffix(""))
        entries.append({"name": name, "description": "\n".join(lines)})
    return entries


def notes(preset: str) -> dict[str, str]:
    """Parse a preset's head: "" has the first line, "needs" the rest of a line "# Needs: ..."."""
    lines = [line[1:].strip() for line in preset.splitlines() if line.startswith("#")]
    marks = (line.partition(": ") for line in lines[1:])
    keyed = {key.lower(): text for key, _, text in marks if key.lower() in _MARKS}
    return {"": lines[0] if lines else "", **keyed}


def _title(kind: Kind) -> str:
    return plugins.GROUPS[kind].removeprefix("coterie.")


def _needs(dataset: str) -> str:
    return DATASETS[dataset].needs if dataset in DATASETS else ""


LISTS: Mapping[str, Callable[[], list[Entry]]] = {
    **{_title(kind): partial(of_kind, kind) for kind in parts.PARTS},
    "recipes": of_recipes,
    "presets": of_presets,
}
"""Name of a list -> function that makes it."""


def table(entries: list[Entry]) -> Table:
    """Return a table of entries; their "group" is a line above the first of each group."""
    columns = [key for key in entries[0] if key != "group"]
    made = Table(box=SIMPLE_HEAD, leading=0 if "group" in entries[0] else 1)
    for column in columns:
        whole = column == "name"  # names are not wrapped, so that they can be copied
        made.add_column(column, overflow="fold", no_wrap=whole)
    group = ""
    for entry in entries:
        if entry.get("group", group) != group:
            group = entry["group"]
            made.add_section()
            made.add_row("", Text(group, style="bold"))
        made.add_row(*(entry[column] for column in columns))
    return made
