"""Values of options: those of a table, and how a value is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

import tomli_w

from coterie.ranges import Scalar, options_of

__all__ = ["Scalar", "brief", "defaults", "grid", "made", "options_of", "values", "written"]

T = TypeVar("T")
_BRIEF = 100
"""Characters of a value in a message."""


def defaults(table: type) -> dict[str, Scalar]:
    """Return key -> default value, of the options that have one."""
    known = options_of(table).items()
    return {key: each.default for key, each in known if each.default is not MISSING}


def values(options: object) -> dict[str, Scalar]:
    """Return key -> value in `options`."""
    table: type = type(options)
    return {key: getattr(options, each.name) for key, each in options_of(table).items()}


def grid(table: type) -> dict[str, tuple[Scalar, ...]]:
    """Return key -> values that tuning tries; those of a class replace those that it inherits."""
    tried = [each for each in options_of(table).values() if each.grid]
    stated = (vars(base).get("__annotations__", {}) for base in table.__mro__)
    own = ({each.key: each.grid for each in tried if each.name in names} for names in stated)
    return next(filter(None, own), {})


def made(table: type[T], options: Mapping[str, Any]) -> T:
    """Make a table from untrusted values by field name; ValueError if one does not fit."""
    known = {each.name: each for each in options_of(cast(Any, table)).values()}
    others = {each.name for each in fields(cast(Any, table))} - known.keys()
    converted = {}
    for name, value in options.items():
        if name in others:  # not an option: it keeps the table's value
            continue
        if name not in known:
            raise ValueError(f"{brief(name)} is not an option of {table.__name__}")
        try:
            converted[name] = known[name].take(value)
        except ValueError as error:
            raise ValueError(f"{name} = {brief(value)}: {error}") from None
    return table(**converted)


def written(value: object) -> str:
    """Format a value in TOML syntax."""
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def brief(value: object) -> str:
    """Format a value for a message, shortened to one line."""
    try:
        text = " ".join(written(value).split())  # a list would be many lines
    except RecursionError:
        return "a value of very many levels"
    return shortened(text)


def shortened(text: str) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]} ..."
