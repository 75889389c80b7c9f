"""Plugins: methods, models, data sets and partitions that are not built in, found by name.

A name is that of an entry point of an installed package (groups `coterie.methods`,
`coterie.models`, `coterie.datasets`, `coterie.partitions`), or "package.module:attribute", looked
up with the working directory on the path. What a program hands over as an object has a name, too:
"here:NAME" is known to the process that registered it and to no other.
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

from coterie.datasets.problem import DataError
from coterie.errors import Error, line_of

Kind = Literal["method", "model", "dataset", "partition"]

HERE = "here:"
PATH = "COTERIE_PATH"
"""Variable: the working directory of whoever started a run whose processes work elsewhere."""

_here: dict[tuple[Kind, str], object] = {}
_tokens: dict[tuple[Kind, str], bytes] = {}


class PluginError(DataError):
    """A plugin that cannot be had, or is not what it has to be; one line says why."""


def register(kind: Kind, name: str, part: object) -> str:
    """Name an object of this process; the name to configure a run with."""
    _here[kind, HERE + name], _tokens[kind, HERE + name] = part, secrets.token_bytes(16)
    return HERE + name


@lru_cache
def installed(kind: Kind) -> Mapping[str, metadata.EntryPoint]:
    """Name -> entry point of the installed packages."""
    return {entry.name: entry for entry in metadata.entry_points(group=f"coterie.{kind}s")}


def is_named(kind: Kind, name: str) -> bool:
    """Whether the name may be a plugin's: a module's attribute, or installed."""
    return ":" in name or name in installed(kind)


def load(kind: Kind, name: str) -> Any:
    """The plugin of that name.

    Raises
    ------
    PluginError
        There is none, or its module does not load.
    """
    if name.startswith(HERE):
        if (kind, name) not in _here:
            raise PluginError(
                f'{kind} = "{name}" was handed over in another Python process: hand it over again, '
                'or name it "module:attribute"'
            )
        return _here[kind, name]
    try:
        if ":" not in name:
            return installed(kind)[name].load()
        return _attribute(kind, name)
    except PluginError:
        raise
    except Exception as error:  # the user's code may raise anything while it loads
        raise PluginError(f'{kind} = "{name}" does not load: {line_of(error)}') from error


def _attribute(kind: Kind, name: str) -> Any:
    """The attribute that "package.module:attribute" names."""
    module_name, _, path = name.partition(":")
    for place in (os.getcwd(), os.environ.get(PATH)):
        if place and place not in sys.path:
            sys.path.append(place)  # at the end: a file of the user's hides no library
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise PluginError(
            f'{kind} = "{name}": no module "{error.name}" is installed or in {os.getcwd()}'
        ) from None
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            near = get_close_matches(attribute, dir(found), n=1)
            hint = f', did you mean "{near[0]}"?' if near else ""
            raise PluginError(f'{kind} = "{name}": "{module_name}" has no "{attribute}"{hint}')
        found = getattr(found, attribute)
    return found


def options_of(function: Callable[..., Any], name: str) -> type | None:
    """The dataclass that annotates a plugin's parameter `options`; None where it has no such.

    Raises
    ------
    PluginError
        It is no frozen dataclass.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # an annotation for type checkers only, or built in
        return None
    if "options" not in parameters:
        return None
    table = parameters["options"].annotation
    return checked_options(table, name)


def checked_options(table: object, name: str) -> type:
    """A table of options, if that is what it is.

    Raises
    ------
    PluginError
        It is no frozen dataclass.
    """
    if not (isinstance(table, type) and is_dataclass(table)):
        raise PluginError(f'"{name}": its options must be a dataclass, not {table!r}')
    if not table.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PluginError(f'"{name}": write @dataclass(frozen=True) above {table.__name__}')
    return table


def call(function: Callable[..., Any], name: str, **arguments: Any) -> Any:
    """Call a plugin with those of the arguments that it has parameters for, by name.

    Raises
    ------
    PluginError
        It has other parameters, or raised an error, which is the cause.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for each in () if takes_any else parameters:
        if (
            each.name not in arguments
            and each.default is each.empty
            and each.kind is not each.VAR_POSITIONAL
        ):
            raise PluginError(
                f'"{name}" has a parameter "{each.name}": it may have {", ".join(arguments)}, and '
                "others with defaults"
            )
    wanted = arguments.keys() if takes_any else {each.name for each in parameters}
    try:
        return function(**{key: value for key, value in arguments.items() if key in wanted})
    except Error:
        raise
    except Exception as error:
        raise PluginError(f'"{name}": {line_of(error)}') from error


def fingerprint(kind: Kind, name: str) -> bytes:
    """What changes with the plugin: the file of its module, or the object handed over."""
    if name.startswith(HERE):
        return _tokens[kind, name]
    found = inspect.getmodule(load(kind, name))
    file = getattr(found, "__file__", None)
    return Path(file).read_bytes() if file else b""
