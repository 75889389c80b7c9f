"""Plugins: methods, models, data sets and partitions that are not built in, loaded by name.

A name is an entry point of an installed package (groups `coterie.methods`, `coterie.models`,
`coterie.datasets`, `coterie.partitions`), or "package.module:attribute", imported with the working
directory on the path. Objects registered by a program have names "here:NAME", which are valid in
that process only.
"""

from __future__ import annotations

import inspect
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from datasets.problem import DataError

Kind = Literal["method", "model", "dataset", "partition"]

HERE = "here:"
PATH = "COTERIE_PATH"
"""Environment variable with the user's working directory, for processes that run elsewhere."""

_here: dict[tuple[Kind, str], object] = {}
_tokens: dict[tuple[Kind, str], bytes] = {}


class PluginError(DataError):
    """A plugin cannot be loaded, or has the wrong type; the message is one line."""


def register(kind: Kind, name: str, part: object) -> str:
    """Register an object of this process, and return its name in a configuration."""
    _here[kind, HERE + name], _tokens[kind, HERE + name] = part, secrets.token_bytes(16)
    return HERE + name


@lru_cache
def installed(kind: Kind) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of the installed packages, by name."""
    return {entry.name: entry for entry in metadata.entry_points(group=f"coterie.{kind}s")}


def is_named(kind: Kind, name: str) -> bool:
    """Return True if the name has the form of a plugin's or is an installed entry point."""
    return ":" in name or name in installed(kind)


def load(kind: Kind, name: str) -> Any:
    """Load a plugin by name.

    Raises
    ------
    PluginError
        It does not exist, or importing it fails.
    """
    if name.startswith(HERE):
        if (kind, name) not in _here:
            raise PluginError(
                f'{kind} = "{name}" was registered in another Python process: pass the object '
                'again, or name it "module:attribute"'
            )
        return _here[kind, name]
    try:
        if ":" not in name:
            return installed(kind)[name].load()
        return _attribute(kind, name)
    except PluginError:
        raise
    except Exception as error:  # any error of a user's module
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PluginError(f'{kind} = "{name}" does not load: {reason}') from error


def _attribute(kind: Kind, name: str) -> Any:
    """Import "package.module:attribute"."""
    module_name, _, path = name.partition(":")
    for folder in (os.getcwd(), os.environ.get(PATH)):
        if folder and folder not in sys.path:
            sys.path.append(folder)  # at the end, so that user files do not hide libraries
    try:
        part: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise PluginError(
            f'{kind} = "{name}": no module "{error.name}" is installed or in {os.getcwd()}'
        ) from None
    for attribute in path.split("."):
        if not hasattr(part, attribute):
            near = get_close_matches(attribute, dir(part), n=1)
            hint = f', did you mean "{near[0]}"?' if near else ""
            raise PluginError(f'{kind} = "{name}": "{module_name}" has no "{attribute}"{hint}')
        part = getattr(part, attribute)
    return part


def options_of(function: Callable[..., Any], name: str) -> type | None:
    """Return the dataclass that annotates a plugin's parameter `options`, or None.

    Raises
    ------
    PluginError
        The annotation is not a frozen dataclass.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # an annotation for type checkers, or a built-in
        return None
    if "options" not in parameters:
        return None
    table = parameters["options"].annotation
    return checked_options(table, name)


def checked_options(table: object, name: str) -> type:
    """Return an option table after checking its type.

    Raises
    ------
    PluginError
        It is not a frozen dataclass.
    """
    if not (isinstance(table, type) and is_dataclass(table)):
        raise PluginError(f'"{name}": its options must be a dataclass, not {table!r}')
    if not table.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PluginError(f'"{name}": write @dataclass(frozen=True) above {table.__name__}')
    return table


def call(function: Callable[..., Any], name: str, **arguments: Any) -> Any:
    """Call a plugin with the arguments that it has parameters for, by name.

    Raises
    ------
    PluginError
        It has a required parameter of another name.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**arguments)
    for parameter in parameters:
        if (
            parameter.name not in arguments
            and parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise PluginError(
                f'"{name}" has a parameter "{parameter.name}": only {", ".join(arguments)} are '
                "passed; give it a default, or remove it"
            )
    names = {parameter.name for parameter in parameters}
    return function(**{key: value for key, value in arguments.items() if key in names})


def fingerprint(kind: Kind, name: str) -> bytes:
    """Return bytes that change with the plugin: its module's file, or a token of the object."""
    if name.startswith(HERE):
        return _tokens[kind, name]
    module = inspect.getmodule(load(kind, name))
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file else b""
