"""A table of options: a frozen dataclass of scalars, written in TOML with kebab-case keys.

Fields are bool, int, float, str, Literal, or a union of these. Other fields are not options. A
string that names a file or a directory is annotated `Annotated[str, Path]`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

Scalar = bool | int | float | str
T = TypeVar("T")
_BRIEF = 100
"""Characters of a value in a message."""
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


@lru_cache
def keys(table: type) -> Mapping[str, tuple[str, Any]]:
    """Key -> (field name, annotation) of each option; `lambda_` is written `lambda`."""
    hints = get_type_hints(table, include_extras=True)
    return {
        field.name.rstrip("_").replace("_", "-"): (field.name, hints[field.name])
        for field in fields(table)
        if all(isinstance(kind, str) or kind in _NAMES for kind in _alternatives(hints[field.name]))
    }


def defaults(table: type) -> dict[str, Scalar]:
    """Key -> default value."""
    default = {field.name: field.default for field in fields(table)}
    return {key: default[name] for key, (name, _) in keys(table).items()}  # type: ignore[misc]


def has_default(table: type, key: str) -> bool:
    """Whether an option need not be given."""
    (default,) = (f.default for f in fields(table) if f.name == keys(table)[key][0])
    return default is not MISSING


def values(options: object) -> dict[str, Scalar]:
    """Key -> value in `options`."""
    return {key: getattr(options, name) for key, (name, _) in keys(type(options)).items()}  # type: ignore[arg-type]


def convert(value: Any, annotation: Any) -> Scalar:
    """`value` as `annotation` wants it: an int serves as a float, nothing else is converted.

    Raises
    ------
    ValueError
        Says what is wanted.
    """
    for kind in _alternatives(annotation):
        if isinstance(kind, str):
            if value == kind:
                return kind
        elif kind is float:
            if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                return float(value)
        elif type(value) is kind and not (kind is int and abs(value) >= 2**63):
            same: Scalar = value
            return same
    raise ValueError(f"wants {_describe(annotation)}")


def made(table: type[T], options: Mapping[str, Any]) -> T:
    """Make a table from values by field name, as somebody else may have written them.

    Raises
    ------
    ValueError
        One is unknown or of another type, or all together are impossible.
    """
    known = dict(keys(table).values())
    others = {each.name for each in fields(table)} - known.keys()
    found = {}
    for name, value in options.items():
        if name in others:  # no option: it is as the table has it
            continue
        if name not in known:
            raise ValueError(f"{brief(name)} is no option of {table.__name__}")
        try:
            found[name] = convert(value, known[name])
        except ValueError as error:
            raise ValueError(f"{name} = {brief(value)}: {error}") from None
    return table(**found)


def check_kind(value: Scalar, annotation: Any) -> None:
    """Refuse a value of another type; of names, those that no version may have had, too.

    Raises
    ------
    ValueError
        Says what is wanted.
    """
    kinds = {str if isinstance(kind, str) else kind for kind in _alternatives(annotation)}
    if type(value) in kinds or (type(value) is int and float in kinds):
        return
    raise ValueError(f"wants {_describe(annotation)}")


def read(text: str, annotation: Any) -> Scalar:
    """A value typed at the prompt: TOML where that fits, else the text itself as a string.

    Raises
    ------
    ValueError
        Says what is wanted.
    """
    try:
        return convert(tomllib.loads(f"value = {text}")["value"], annotation)
    except ValueError:
        return convert(text, annotation)


def written(value: object) -> str:
    """A value as it stands in a TOML file, and as it may be typed at the prompt."""
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def brief(value: object) -> str:
    """A value for a message: on one line, and not longer than one."""
    text = " ".join(written(value).split())  # a list would be many lines
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]} ..."


def is_path(annotation: Any) -> bool:
    """Whether a field names a file or a directory."""
    return get_origin(annotation) is Annotated and Path in annotation.__metadata__


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types and literal strings that `annotation` allows."""
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
