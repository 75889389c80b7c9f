"""A table of options: a frozen dataclass of scalars, written in TOML with kebab-case keys.

Fields are bool, int, float, str, Literal, or a union of these. Other fields are not options. A
string that names a file or a directory is annotated `Annotated[str, Path]`; text in an annotation,
`Annotated[int, "Maximum number of ..."]`, describes the option.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

Scalar = bool | int | float | str
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


def notes(table: type) -> dict[str, str]:
    """Key -> the text that describes it in its annotation; "" where there is none."""
    texts = {
        key: [note for note in getattr(kind, "__metadata__", ()) if isinstance(note, str)]
        for key, (_, kind) in keys(table).items()
    }
    return {key: " ".join(text) for key, text in texts.items()}


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
