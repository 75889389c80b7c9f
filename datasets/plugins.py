"""Plugins: parts of a run that are not built in, loaded by name.

A name is an entry point of an installed package (`GROUPS`), or "package.module:attribute", imported
with the working directory on the path. Objects registered by a program have names "here:NAME",
which are valid in that process only.
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
from typing import Any, Literal, TypeVar, get_args

from coterie.datasets.problem import DataError
from coterie.errors import Error, line_of

Kind = Literal[
    "method", "model", "dataset", "partition", "topology", "attack", "defence", "schedule"
]
GROUPS: Mapping[Kind, str] = {kind: f"coterie.{kind}s" for kind in get_args(Kind)}
GROUPS = {**GROUPS, "topology": "coterie.topologies"}
"""Kind of part -> group of its entry points."""
Row = TypeVar("Row")

HERE = "here:"
PATH = "COTERIE_PATH"
"""Environment variable with the user's working directory, for processes that run elsewhere."""

_here: dict[tuple[Kind, str], object] = {}
_tokens: dict[tuple[Kind, str], bytes] = {}


class PluginError(DataError):
    """A plugin cannot be loaded, or has the wrong type; the message is one line."""


def register(kind: Kind, name: str, part: object, token: bytes = b"") -> str:
    """Register an object of this process, and return its name in a configuration."""
    # Runs with the same `token` are of the same object; by default each is new.
    _here[kind, HERE + name], _tokens[kind, HERE + name] = part, token or secrets.token_bytes(16)
    return HERE + name


@lru_cache
def installed(kind: Kind) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of the installed packages, by name."""
    return {entry.name: entry for entry in metadata.entry_points(group=GROUPS[kind])}


def is_named(kind: Kind, name: str) -> bool:
    """Return True if the name has the form of a plugin's or is an installed entry point."""
    return ":" in name or name in installed(kind)


def load(kind: Kind, name: str) -> Any:
    """Load a plugin by name; PluginError if it does not exist, or importing it fails."""
    if name.startswith(HERE):
        if (kind, name) not in _here:
            raise PluginError(
                f'{kind} = "{name}" was registered in another Python process: pass the object '
                'again, or name it "module:attribute"'
            )
        return _here[kind, name]
    try:
        if ":" not in name:
            if name not in installed(kind):
                raise PluginError(f'{kind} = "{name}" is unknown')
            return installed(kind)[name].load()
        return _attribute(kind, name)
    except PluginError:
        raise
    except Exception as error:  # the user's code may raise anything while it loads
        raise PluginError(f'{kind} = "{name}" does not load: {line_of(error)}') from error


def row(kind: Kind, name: str, built_in: Mapping[str, Row], wanted: type[Row]) -> Row:
    """Return a built-in row, or load a plugin's; PluginError: it does not load, or is no row."""
    # `wanted` is the type of a row, and part of the API under its name.
    if name in built_in:
        return built_in[name]
    part = load(kind, name)
    if not isinstance(part, wanted):
        parameters = ", ".join(inspect.signature(wanted).parameters)
        raise PluginError(
            f'{kind} = "{name}" is a {type(part).__name__}: it must be a '
            f"coterie.{wanted.__name__}({parameters})"
        )
    return part


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
    """Return the dataclass that annotates a plugin's parameter `options`, or None."""
    # PluginError: the annotation is not a frozen dataclass.
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # an annotation for type checkers, or a built-in
        return None
    if "options" not in parameters:
        return None
    table = parameters["options"].annotation
    return checked_options(table, name)


def checked_options(table: object, name: str) -> type:
    """Return an option table; PluginError if it is not a frozen dataclass."""
    if not (isinstance(table, type) and is_dataclass(table)):
        raise PluginError(f'"{name}": its options must be a dataclass, not {table!r}')
    if not table.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PluginError(f'"{name}": write @dataclass(frozen=True) above {table.__name__}')
    return table


def call(function: Callable[..., Any], name: str, **arguments: Any) -> Any:
    """Call a plugin with the arguments that it has parameters for, by name."""
    # PluginError: it has other parameters, or raised an error, which is the cause.
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for parameter in () if takes_any else parameters:
        if (
            parameter.name not in arguments
            and parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise PluginError(
                f'"{name}" has a parameter "{parameter.name}": only {", ".join(arguments)} are '
                "passed; give it a default, or remove it"
            )
    wanted = arguments.keys() if takes_any else {each.name for each in parameters}
    try:
        return function(**{key: value for key, value in arguments.items() if key in wanted})
    except Error:
        raise
    except Exception as error:
        raise PluginError(f'"{name}": {line_of(error)}') from error


def fingerprint(kind: Kind, name: str) -> bytes:
    """Return bytes that change with the plugin, or a token of an object of this process."""
    # From the files of the named module, and of those that define the object or a row's functions.
    if name.startswith(HERE):
        return _tokens[kind, name]
    part = load(kind, name)
    is_row = is_dataclass(part) and not isinstance(part, type)
    defined = (
        getattr(each, "__module__", None) for each in (vars(part).values() if is_row else [part])
    )
    named = name.partition(":")[0] if ":" in name else installed(kind)[name].module
    modules = sorted({named, *filter(None, defined)})
    files = (getattr(sys.modules.get(module), "__file__", None) for module in modules)
    return b"".join(Path(file).read_bytes() for file in files if file)
