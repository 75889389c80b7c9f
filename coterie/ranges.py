"""Options: fields of a frozen dataclass, each stated once, with all that is known about it.

    gamma: float = option(0.01, "Step size of the weights.", low=0, grid=(0.01, 0.03, 0.1))

gives the key `gamma`, its type, default, text, range, and the values that tuning tries. Parsing,
help, pages, pyproject.toml, digests and policies read this line with `options_of`. A range may
also stand in the type: `Annotated[float, Range(0)]`.
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from coterie.errors import Error

Scalar = bool | int | float | str
Scope = Literal["run", "site", "relay", "start"]
"""Owner of a key: "run": all processes of a run share it, and the digest covers it; "site": each
node; "relay": the relay alone; "start": one start of the run, so config.toml leaves it out."""

_SCALARS = {
    bool: ("true or false", "true or false"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    str: ("text", "a string"),
}
"""Type -> its name in help, and in a message."""


class RangeError(Error, ValueError):
    """A value is out of range; the message says which values are allowed."""


@dataclass(frozen=True)
class Range:
    """Interval of allowed values.

    `Range(1)` is 1 or more, `Range(0, 1)` is 0 to 1 with both ends, `Range(0, below=1)` excludes 1,
    `Range(above=0)` excludes 0.
    """

    low: float = -math.inf
    high: float = math.inf
    """Minimum and maximum."""
    above: float = -math.inf
    below: float = math.inf
    """Bounds that are not allowed themselves."""

    def __contains__(self, value: float) -> bool:
        return (
            self.low <= value <= self.high
            and (value > self.above or self.above == -math.inf)
            and (value < self.below or self.below == math.inf)
        )

    def check(self, value: float) -> None:
        """Reject a value outside the interval, or that is not a number, by a RangeError."""
        if value not in self:
            raise RangeError(f"must be {self}")

    def __str__(self) -> str:
        if self.low > -math.inf and self.high < math.inf:
            return f"{self.low:g} to {self.high:g}"
        bounds = (
            ("at least", self.low, -math.inf),
            ("above", self.above, -math.inf),
            ("at most", self.high, math.inf),
            ("below", self.below, math.inf),
        )
        return " and ".join(f"{word} {bound:g}" for word, bound, none in bounds if bound != none)


def option(
    default: Any,
    text: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    path: bool = False,
    scope: Scope = "run",
    used_by: Collection[str] = (),
    grid: Collection[float | str] = (),
) -> Any:
    """State an option, the value of a field: `steps: int = option(5, "Steps.", low=1)`.

    `low` and `high` are allowed, `above` and `below` are not. `path`: the string names a file or a
    directory of each node. `scope`: who sets the key, for options of the application. `used_by`:
    the built-in kinds of the table that use the option; empty: all. `grid`: three values that
    `compare --tune` tries; at most one option of a method has them. RangeError: the default or a
    value of the grid is out of range; the message has the option's text.
    """
    bounds = Range(low, high, above, below)
    for value in (default, *grid):
        if isinstance(value, int | float) and value not in bounds:
            raise RangeError(f"{value} must be {bounds}: option({default!r}, {text!r})")
    known = {"text": text, "range": bounds, "is_path": path}
    more = {"scope": scope, "used_by": frozenset(used_by), "grid": tuple(grid)}
    return field(default=default, metadata=known | more)


@dataclass(frozen=True)
class Option:
    """Option of a table."""

    key: str  # in TOML; the key of the field `lambda_` is "lambda"
    name: str  # of the field
    kinds: tuple[type[Scalar] | str, ...]  # allowed types; a string stands for itself
    default: Any  # MISSING if it must be set
    text: str = ""
    range: Range = Range()
    is_path: bool = False
    scope: Scope = "run"
    used_by: frozenset[str] = frozenset()
    grid: tuple[float | str, ...] = ()

    def take(self, value: Any) -> Scalar:
        """Return a value of the option's type and range; an int is converted to a float.

        ValueError: its type is wrong; RangeError: it is out of range; the message has either.
        """
        for kind in self.kinds:
            if isinstance(kind, str):
                if value == kind:
                    return kind
            elif kind is float:
                if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                    return float(self._bounded(value))
            elif type(value) is kind and not (isinstance(value, int) and abs(value) >= 2**63):
                return self._bounded(value)
        raise ValueError(f"must be {self._expected}")

    def read(self, text: str) -> Scalar:
        """Parse a value from the command line: as TOML if that fits, else as a string."""
        try:
            return self.take(tomllib.loads(f"value = {text}")["value"])
        except RangeError:
            raise
        except (ValueError, RecursionError):
            return self.take(text)

    def check_type(self, value: object) -> None:
        """Refuse a value of another type; names may be unknown, as versions differ in them."""
        types = {str if isinstance(kind, str) else kind for kind in self.kinds}
        if type(value) not in types and not (type(value) is int and float in types):
            raise ValueError(f"must be {self._expected}")

    @property
    def values(self) -> str:
        """Allowed values for help, as in "integer at least 1"."""
        if self.is_path:
            return "path"
        bounds = f" {self.range}".rstrip()
        words = (
            f'"{kind}"' if isinstance(kind, str)
            else _SCALARS[kind][0] + bounds * (kind in (int, float))
            for kind in self.kinds
        )  # fmt: skip
        return ", ".join(dict.fromkeys(words))

    def _bounded(self, value: Scalar) -> Scalar:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.range.check(value)
        return value

    @property
    def _expected(self) -> str:
        words = [f'"{k}"' if isinstance(k, str) else _SCALARS[k][1] for k in self.kinds]
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@lru_cache
def options_of(table: type) -> Mapping[str, Option]:
    """Return key -> option; fields that no key can set, such as arrays, are left out."""
    types = _types(table)
    key_of = {each.name: each.name.rstrip("_").replace("_", "-") for each in fields(table)}
    found = {}
    for each in fields(table):
        kinds, notes = _flattened(types[each.name])
        if not all(isinstance(kind, str) or kind in _SCALARS for kind in kinds):
            continue
        (bounds,) = {note for note in notes if isinstance(note, Range)} or {Range()}
        known = {"range": bounds, "is_path": Path in notes, **each.metadata}
        # texts name other options by field or by key
        text = re.sub(r"\w+_\w+", lambda word: key_of.get(word[0], word[0]), known.pop("text", ""))
        key = key_of[each.name]
        found[key] = Option(key, each.name, kinds, each.default, text, **known)
    return found


def check(options: object) -> None:
    """Check the numbers of a dataclass against its ranges; a RangeError names the field.

    Values of a configuration are checked when it is read; use this for other dataclasses.
    """
    table: type = type(options)
    for each in options_of(table).values():
        value = getattr(options, each.name)
        try:
            each._bounded(value)
        except RangeError as error:
            raise RangeError(f"{each.name} = {value}: {error}") from None


def _types(table: type) -> dict[str, Any]:
    """Return field -> type; other annotations may need imports that only type checkers see."""
    known = {each.name for each in fields(table)}
    found: dict[str, Any] = {}
    for base in reversed(table.__mro__):
        written = vars(base).get("__annotations__", {})
        own = SimpleNamespace(__annotations__={k: v for k, v in written.items() if k in known})
        module = vars(sys.modules.get(base.__module__, sys))
        found |= get_type_hints(own, module, include_extras=True)
    return found


def _flattened(annotation: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the alternatives of a type, and the notes beside them."""
    if get_origin(annotation) is Annotated:
        kinds, notes = _flattened(annotation.__origin__)
        return kinds, (*notes, *annotation.__metadata__)
    if get_origin(annotation) is Literal:
        return get_args(annotation), ()
    if get_origin(annotation) in (Union, UnionType):
        each = [_flattened(part) for part in get_args(annotation)]
        return tuple(k for kinds, _ in each for k in kinds), tuple(n for _, ns in each for n in ns)
    return (annotation,), ()


@lru_cache
def adapter(kind: Any) -> Any:
    """Return pydantic's reader of a type; making one takes longer than a small file."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
