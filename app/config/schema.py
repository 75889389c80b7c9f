"""Option tables: frozen dataclasses of scalars, with kebab-case keys in TOML.

Fields are bool, int, float, str, Literal, or a union of these. Other fields are not options. Their
default, text and range are those of `coterie.ranges.option`, or in their type: a string that names
a file or a directory is `Annotated[str, Path]`, a number with limits `Annotated[int, Range(1)]`;
text in an annotation, `Annotated[int, "Maximum number of ..."]`, describes the option.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import tomli_w

from coterie import ranges
from coterie.ranges import RangeError

Scalar = bool | int | float | str
Number = TypeVar("Number", int, float)
T = TypeVar("T")
_BRIEF = 100
"""Characters of a value in a message."""
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


@lru_cache
def keys(table: type) -> Mapping[str, tuple[str, Any]]:
    """Return key -> (field name, annotation) of the options; the key of `lambda_` is `lambda`."""
    hints = ranges.hints(table)
    return {
        field.name.rstrip("_").replace("_", "-"): (field.name, hints[field.name])
        for field in fields(table)
        if all(isinstance(kind, str) or kind in _NAMES for kind in _alternatives(hints[field.name]))
    }


def defaults(table: type) -> dict[str, Scalar]:
    """Return key -> default value."""
    default = {field.name: field.default for field in fields(table)}
    return {key: default[name] for key, (name, _) in keys(table).items()}  # type: ignore[misc]


def has_default(table: type, key: str) -> bool:
    """Return whether an option has a default."""
    (default,) = (f.default for f in fields(table) if f.name == keys(table)[key][0])
    return default is not MISSING


def values(options: object) -> dict[str, Scalar]:
    """Return key -> value in `options`."""
    return {key: getattr(options, name) for key, (name, _) in keys(type(options)).items()}  # type: ignore[arg-type]


def grid(table: type) -> dict[str, tuple[Scalar, ...]]:
    """Return key -> values that tuning tries, of the options that have them."""
    tried = ranges.grid(table)
    return {key: tried[name] for key, (name, _) in keys(table).items() if name in tried}


def notes(table: type) -> dict[str, str]:
    """Return key -> description in its annotation; "" if there is none."""
    texts = {
        key: [note for note in getattr(kind, "__metadata__", ()) if isinstance(note, str)]
        for key, (_, kind) in keys(table).items()
    }
    return {key: " ".join(text) for key, text in texts.items()}


def convert(value: Any, annotation: Any) -> Scalar:
    """Return `value` if it has the annotated type and range; an int is converted to a float.

    Raises
    ------
    ValueError
        If the type is wrong; the message has the expected type.
    RangeError
        If a number is out of range; the message has the range.
    """
    for kind in _alternatives(annotation):
        if isinstance(kind, str):
            if value == kind:
                return kind
        elif kind is float:
            if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                return float(_in_range(value, annotation))
        elif type(value) is kind and not (kind is int and abs(value) >= 2**63):
            same: Scalar = _in_range(value, annotation) if kind is int else value
            return same
    raise ValueError(f"must be {_describe(annotation)}")


def made(table: type[T], options: Mapping[str, Any]) -> T:
    """Make a table from untrusted values by field name.

    Raises
    ------
    ValueError
        An option is unknown or of another type, or the options are inconsistent.
    """
    known = dict(keys(cast(Any, table)).values())
    others = {each.name for each in fields(cast(Any, table))} - known.keys()
    converted = {}
    for name, value in options.items():
        if name in others:  # not an option: it keeps the table's value
            continue
        if name not in known:
            raise ValueError(f"{brief(name)} is not an option of {table.__name__}")
        try:
            converted[name] = convert(value, known[name])
        except ValueError as error:
            raise ValueError(f"{name} = {brief(value)}: {error}") from None
    return table(**converted)


def check_kind(value: Scalar, annotation: Any) -> None:
    """Refuse a value of another type; names may be unknown, as versions differ in them.

    Raises
    ------
    ValueError
        The message has the expected type.
    """
    kinds = {str if isinstance(kind, str) else kind for kind in _alternatives(annotation)}
    if type(value) in kinds or (type(value) is int and float in kinds):
        return
    raise ValueError(f"must be {_describe(annotation)}")


def read(text: str, annotation: Any) -> Scalar:
    """Parse a value from the command line: as TOML if that fits, else as a string.

    Raises
    ------
    ValueError
        If the type is wrong; the message has the expected type.
    RangeError
        If a number is out of range; the message has the range.
    """
    try:
        return convert(tomllib.loads(f"value = {text}")["value"], annotation)
    except RangeError:
        raise
    except ValueError:
        return convert(text, annotation)


def written(value: object) -> str:
    """Format a value in TOML syntax."""
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def brief(value: object) -> str:
    """Format a value for a message, shortened to one line."""
    text = " ".join(written(value).split())  # a list would be many lines
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]} ..."


def is_path(annotation: Any) -> bool:
    """Return whether a field names a file or a directory."""
    return get_origin(annotation) is Annotated and Path in annotation.__metadata__


def _in_range(value: Number, annotation: Any) -> Number:
    for each in ranges.of(annotation):
        each.check(value)
    return value


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the types and literal strings that `annotation` allows."""
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)
    if origin is Annotated:
        return _alternatives(annotation.__origin__)
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _alternatives(part))
    return (annotation,)


def _describe(annotation: Any) -> str:
    kinds = [
        f'"{kind}"' if isinstance(kind, str) else _NAMES[kind] for kind in _alternatives(annotation)
    ]
    return " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
