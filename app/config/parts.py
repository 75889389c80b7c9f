"""Parts of a run that are selected by name: built-in parts, and plugins with their own options.

The options of a plugin are in a table named after its kind ([method-options], [model-options],
...). Flower accepts only keys in pyproject.toml, so each of these tables is also a single key whose
value is the content of an inline table: method-options = "alpha = 0.1".
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import schema
from app.config.keys import ConfigError, TopLevel, nearest
from app.config.keys import paths as paths_of_ours
from app.config.registry import METHODS, method_of
from app.config.schema import Scalar
from clients.models import plugin_options
from clients.models.options import MODELS
from datasets import plugins
from datasets.partition.kinds import KINDS
from datasets.partition.options import Partition
from datasets.plugins import Kind, PluginError
from datasets.table import DATASETS, dataset_of

LIBRARIES = ("torchvision:", "timm:")
"""Models that a deployed node builds from what is installed there."""


@dataclass(frozen=True)
class Part:
    """Kind of part.

    Attributes
    ----------
    key : str
        Key with the name of the part.
    default : str
        Default name.
    built_in : Collection[str]
        Names of built-in parts.
    options : Callable[[str], type | None]
        Function from the name of a plugin to its options dataclass, or None.
    """

    key: str
    default: str
    built_in: Collection[str]
    options: Callable[[str], type | None]


PARTS: Mapping[Kind, Part] = {
    "method": Part("method", TopLevel.method, METHODS, lambda name: method_of(name).options),
    "model": Part("model", TopLevel.model, MODELS, plugin_options.of),
    "dataset": Part("dataset", TopLevel.dataset, DATASETS, lambda name: dataset_of(name).options),
    "partition": Part(
        "partition.kind",
        Partition.kind,
        KINDS,
        lambda name: plugins.options_of(plugins.load("partition", name), name),
    ),
}
"""Kind -> its key and choices."""

TABLES: Mapping[str, Kind] = {f"{kind}-options": kind for kind in PARTS}
"""Table of a plugin's options -> its kind."""


def chosen(flat: Mapping[str, Scalar]) -> dict[Kind, str]:
    """The names that flat keys choose.

    Raises
    ------
    ConfigError
        Nothing has such a name.
    """
    names: dict[Kind, str] = {}
    for kind, part in PARTS.items():
        name = flat.get(part.key, part.default)
        if not isinstance(name, str):
            raise ConfigError(f"{part.key} = {schema.written(name)}: wants a string")
        if name not in part.built_in and not plugins.is_named(kind, name):
            known = [*part.built_in, *plugins.installed(kind)]
            raise ConfigError(f'unknown {part.key} "{name}"{nearest(name, known)}')
        names[kind] = name
    return names


def foreign(names: Mapping[Kind, str]) -> dict[Kind, str]:
    """Those of the names that are a plugin's."""
    return {kind: name for kind, name in names.items() if name not in PARTS[kind].built_in}


def plugin_tables(flat: Mapping[str, Scalar]) -> dict[str, type]:
    """The tables of options that the chosen plugins bring; they are loaded for that.

    Raises
    ------
    ConfigError
        One cannot be had.
    """
    tables = {}
    for kind, name in foreign(chosen(flat)).items():
        try:
            table = PARTS[kind].options(name)
        except PluginError as error:
            raise ConfigError(str(error)) from error.__cause__
        if table is not None:
            tables[f"{kind}-options"] = table
    return tables


def used(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Flat keys without the options of plugins that are not chosen: a comparison shares its keys.

    Like those of other methods and models of ours, they mean nothing to the run.
    """
    names = foreign(chosen(flat))
    idle = {table for table, kind in TABLES.items() if kind not in names}
    return {key: value for key, value in flat.items() if key.partition(".")[0] not in idle}


def unpacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys in which tables of options are no longer packed into one key.

    Raises
    ------
    ConfigError
        What is packed is no TOML.
    """
    loose = {key: value for key, value in flat.items() if key not in TABLES}
    for table in TABLES.keys() & flat.keys():
        text = flat[table]
        try:
            inner = tomllib.loads(f"_ = {{{text}}}")["_"]
        except tomllib.TOMLDecodeError:
            raise ConfigError(
                f'{table} = "{text}": wants options like "alpha = 0.1, kind = \'x\'"'
            ) from None
        loose = {f"{table}.{key}": value for key, value in inner.items()} | loose
    return loose


def packed(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The inverse of `unpacked`: flat keys that Flower takes."""
    tight = {key: value for key, value in flat.items() if key.partition(".")[0] not in TABLES}
    for table in TABLES:
        start = f"{table}."
        inner = {key.removeprefix(start): v for key, v in flat.items() if key.startswith(start)}
        if inner:
            tight[table] = ", ".join(f"{k} = {schema.written(v)}" for k, v in inner.items())
    return tight


def paths(tables: Mapping[str, type]) -> frozenset[str]:
    """The keys that name a file or a directory, those of plugins' tables among them."""
    return paths_of_ours() | {
        f"{table}.{key}"
        for table, options in tables.items()
        for key, (_, annotation) in schema.keys(options).items()
        if schema.is_path(annotation)
    }


def refuse_modules(flat: Mapping[str, Scalar]) -> None:
    """Refuse names that a deployment does not take: it runs no code that is not installed.

    Raises
    ------
    ConfigError
        Says which name, and the remedy. Nothing was loaded.
    """
    for kind, name in foreign(chosen(flat)).items():
        if ":" in name and not (kind == "model" and name.startswith(LIBRARIES)):
            raise ConfigError(
                f'{PARTS[kind].key} = "{name}" is not installed: a deployment takes what is built '
                f'in, and entry points "coterie.{kind}s" of packages that its nodes have installed'
            )


def fingerprints(flat: Mapping[str, Scalar]) -> Iterable[bytes]:
    """What changes when the code of a chosen plugin does, or a folder that a model comes from."""
    for kind, name in foreign(chosen(flat)).items():
        library, _, which = name.partition(":")
        if kind != "model" or library not in plugin_options.LIBRARIES:
            yield plugins.fingerprint(kind, name)
        elif library == "transformers":
            files = sorted(path for path in Path(which).glob("*") if path.is_file())
            yield from (path.read_bytes() for path in files)
