"""Parts of a run that are selected by name: built-in parts, and plugins with options.

A plugin's options are in a table of its kind ([method-options]); as Flower accepts only keys in
pyproject.toml, also in a key with the content of an inline table: method-options = "alpha = 0.1".
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coterie.app.config import recipes, schema
from coterie.app.config.keys import ConfigError, nearest
from coterie.app.config.registry import METHODS, YARDSTICKS, method_of, schedule_of, topology_of
from coterie.app.config.schema import Scalar
from coterie.clients.attack import ATTACKS, attack_of
from coterie.clients.defence import RULES, rule_of
from coterie.clients.models.options import MODELS, is_of_library, model_of
from coterie.datasets import plugins
from coterie.datasets.partition.kinds import KINDS, kind_of
from coterie.datasets.plugins import Kind, PluginError
from coterie.datasets.table import DATASETS, dataset_of
from coterie.errors import Error, line_of
from coterie.strategies.schedule import SCHEDULES
from coterie.strategies.topology import TOPOLOGIES

PEER_MODELS = "peer-models"
LIBRARIES = ("torchvision:", "timm:")
"""Models that a deployed node builds from installed packages."""
_COMPARED = 100
"""Number of characters of an unknown name that are compared with known names."""


class Row(Protocol):
    """Row of any table of parts."""

    @property
    def summary(self) -> str:
        """Description in one line."""


@dataclass(frozen=True)
class Part:
    """Kind of part."""

    key: str  # key with the name of the part
    built_in: Mapping[str, Row]
    row: Callable[[str], Any]  # row of a name, built in or of a plugin, after checking its type
    has_options: bool = False  # a plugin can have an options dataclass, `row(name).options`


PARTS: Mapping[Kind, Part] = {
    "method": Part("method", {**METHODS, **YARDSTICKS}, method_of, has_options=True),
    "model": Part("model", MODELS, model_of, has_options=True),
    "dataset": Part("dataset", DATASETS, dataset_of, has_options=True),
    "partition": Part("partition.kind", KINDS, kind_of, has_options=True),
    "topology": Part("topology", TOPOLOGIES, topology_of),
    "attack": Part("attack.kind", ATTACKS, attack_of),
    "defence": Part("defence.rule", RULES, rule_of),
    "schedule": Part("schedule.kind", SCHEDULES, schedule_of),
}
"""Kind -> its key, built-in rows and plugins."""

TABLES: Mapping[str, Kind] = {
    f"{kind}-options": kind for kind, part in PARTS.items() if part.has_options
}
"""Table of a plugin's options -> its kind."""


def name_of(kind: Kind, name: object) -> str:
    """Return the name of a part, which must exist or have the form of a plugin's; loads nothing."""
    part = PARTS[kind]
    if not isinstance(name, str):
        raise ConfigError(f"{part.key} = {schema.brief(name)}: must be a string")
    if name not in part.built_in and not plugins.is_named(kind, name):
        known = [*part.built_in, *plugins.installed(kind)]
        known += recipes.recipes() if kind == "method" else ()
        near = nearest(name[:_COMPARED], known)
        raise ConfigError(f"unknown {part.key} {schema.brief(name)}{near}")
    return name


def chosen(flat: Mapping[str, Scalar]) -> dict[Kind, str]:
    """Return the names of the parts that flat keys choose; others are not checked."""
    flat = {**flat, **recipes.expand(flat)}
    return {kind: name_of(kind, flat[p.key]) for kind, p in PARTS.items() if p.key in flat}


def plugins_in(names: Mapping[Kind, str]) -> dict[Kind, str]:
    """Return the names that belong to plugins."""
    return {kind: name for kind, name in names.items() if name not in PARTS[kind].built_in}


def code_named(flat: Mapping[str, Scalar]) -> dict[Kind, str]:
    """Return the chosen names of code or of a folder, as in "module:attribute"; no entry points."""
    return {
        kind: name
        for kind, name in plugins_in(chosen(flat)).items()
        if ":" in name and not (kind == "model" and name.startswith(LIBRARIES))
    }


def plugin_tables(flat: Mapping[str, Scalar]) -> dict[str, type]:
    """Load the chosen plugins and return their option tables."""
    tables = {}
    for kind, name in plugins_in(chosen(flat)).items():
        part = PARTS[kind]
        try:
            row = part.row(name)
        except PluginError as error:
            raise ConfigError(str(error)) from error.__cause__
        options = row if kind == "method" else part.has_options and row.options
        if options:
            tables[f"{kind}-options"] = options
    return tables


def table_of(kind: Kind, name: str) -> str:
    """Return the name of the table with the options of a named part."""
    return name if name in PARTS[kind].built_in else f"{kind}-options"


def pack_peer_models(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Pack the table [peer-models], whose keys are peers, into a single key, which it replaces."""
    start = f"{PEER_MODELS}."
    inner = {key.removeprefix(start): v for key, v in flat.items() if key.startswith(start)}
    rest = {key: value for key, value in flat.items() if not key.startswith(start)}
    if isinstance(rest.get(PEER_MODELS), Mapping):
        inner |= rest.pop(PEER_MODELS)
    if not inner:
        return rest
    pairs = (f"{json.dumps(str(peer))} = {json.dumps(model)}" for peer, model in inner.items())
    return rest | {PEER_MODELS: ", ".join(pairs)}


def unpacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Expand option tables that are packed into a single key."""
    flat = pack_peer_models(flat)
    loose = {key: value for key, value in flat.items() if key not in TABLES}
    for table in TABLES.keys() & flat.keys():
        text = flat[table]
        try:
            inner = tomllib.loads(f"_ = {{{text}}}")["_"]
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{table} = {schema.brief(text)}: must be options like \"alpha = 0.1, kind = 'x'\""
            ) from None
        loose = {f"{table}.{key}": value for key, value in inner.items()} | loose
    return loose


def packed(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Pack option tables into single keys, for Flower; the inverse of `unpacked`."""
    tight = {key: value for key, value in flat.items() if key.partition(".")[0] not in TABLES}
    for table in TABLES:
        start = f"{table}."
        inner = {key.removeprefix(start): v for key, v in flat.items() if key.startswith(start)}
        if inner:
            tight[table] = ", ".join(f"{k} = {schema.written(v)}" for k, v in inner.items())
    return tight


def refuse_modules(flat: Mapping[str, Scalar]) -> None:
    """Refuse names of code that is not installed, which a deployment does not run."""
    for kind, name in code_named(flat).items():
        raise ConfigError(
            f'{PARTS[kind].key} = "{name}" is not installed: a deployment accepts built-in '
            f'parts, and entry points "{plugins.GROUPS[kind]}" of packages that are installed on '
            "its nodes"
        )


def refuse_unnamed(
    flat: Mapping[str, Scalar], named: Collection[str], file: Path, option: str = "--part "
) -> None:
    """Refuse code in a run's file that the user has not `named` too, as the file spells it."""
    # `option` names a part on the command line, "" by its key.
    for kind, name in code_named(flat).items():
        if name not in named:
            key = PARTS[kind].key
            raise ConfigError(f"{file}: {unnamed(key, name, option or f'{key}=')}")


def unnamed(key: str, name: str, option: str = "--part ") -> str:
    """Return the error message for an unnamed part in a file."""
    return (
        f"{key} = {schema.brief(name)} is not built in, and a file of a run loads no code "
        f"that you do not name: if you trust it, name it, too: {option}{shlex.quote(name)}"
    )


def checked_by_part(name: str, check: Callable[[Any], object], subject: object) -> None:
    """Call a compatibility check of a part's options; its error is the cause of a ConfigError."""
    try:
        check(subject)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    except Error:
        raise
    except Exception as error:
        raise ConfigError(f"{name}: {line_of(error)}") from error


def fingerprints(flat: Mapping[str, Scalar]) -> Iterable[bytes]:
    """Yield bytes that change with the code of chosen plugins and the folders of models."""
    for kind, name in plugins_in(chosen(flat)).items():
        if kind != "model" or not is_of_library(name):
            yield plugins.fingerprint(kind, name)
        elif name.startswith("transformers:"):
            folder = Path(name.partition(":")[2])
            files = sorted(path for path in folder.glob("*") if path.is_file())
            yield from (path.read_bytes() for path in files)
