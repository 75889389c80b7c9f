"""Options: fields of a dataclass with default, text, range and the values that tuning tries.

    gamma: float = option(0.01, "Step size of the weights.", low=0, grid=(0.01, 0.03, 0.1))

`hints` returns all of it in the type of the field, `Annotated[float, Range(0), "Step ..."]`,
which may also be written directly. Help, pages, pyproject.toml and all checks read it there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from coterie.errors import Error


class RangeError(Error, ValueError):
    """A value is out of range; the message says which values are allowed."""


@dataclass(frozen=True)
class Range:
    """Interval of allowed values.

    `Range(1)` is 1 or more, `Range(0, 1)` is 0 to 1 with both ends, `Range(0, below=1)` excludes 1,
    `Range(above=0)` excludes 0.

    Attributes
    ----------
    low, high : float
        Minimum and maximum.
    above, below : float
        Bounds that are not allowed themselves.
    """

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return (
            self.low <= value <= self.high
            and (value > self.above or self.above == -math.inf)
            and (value < self.below or self.below == math.inf)
        )

    def check(self, value: float) -> None:
        """Reject a value outside the interval.

        Raises
        ------
        RangeError
            It is outside, or not a number.
        """
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
    grid: Sequence[float | str] = (),
) -> Any:
    """State an option of a method, the value of a field: `steps: int = option(5, "...", low=1)`.

    Parameters
    ----------
    default : bool, int, float or str
        Default value.
    text : str
        Description, for help and documentation.
    low, high : float
        Minimum and maximum of a number.
    above, below : float
        Bounds that are not allowed themselves.
    path : bool
        The string names a file or a directory.
    grid : sequence
        Three values that `compare --tune` tries; at most one option of a method has them.
    """
    notes = (Range(low, high, above, below), text, *([Path] if path else []))
    return field(default=default, metadata={"notes": notes, "grid": tuple(grid)})


def hints(table: type) -> dict[str, Any]:
    """Return field -> annotation, with the range and the text of its `option`."""
    known = {each.name: each.metadata.get("notes") for each in fields(table)}
    found: dict[str, Any] = {}
    for base in reversed(table.__mro__):
        written = vars(base).get("__annotations__", {})
        own = SimpleNamespace(__annotations__={k: v for k, v in written.items() if k in known})
        module = vars(sys.modules.get(base.__module__, sys))
        found |= get_type_hints(own, module, include_extras=True)
    return {name: _noted(found[name], notes) for name, notes in known.items()}


def _noted(annotation: Any, notes: tuple[Any, ...] | None) -> Any:
    if notes is None:
        return annotation
    range_, *others = notes
    return Annotated[_ranged(annotation, range_), *others]


def _ranged(annotation: Any, range_: Range) -> Any:
    """Return a type whose numbers are in a range."""
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_ranged(part, range_) for part in get_args(annotation))]  # noqa: UP007
    is_bounded = annotation in (int, float) and range_ != Range()
    return Annotated[annotation, range_] if is_bounded else annotation


def grid(table: type) -> dict[str, tuple[float | str, ...]]:
    """Return field -> values that tuning tries, of the options that have them."""
    return {each.name: each.metadata["grid"] for each in fields(table) if each.metadata.get("grid")}


def of(annotation: Any) -> tuple[Range, ...]:
    """Return the ranges in the annotation of a field."""
    here = tuple(
        note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, Range)
    )
    if get_origin(annotation) is Annotated:
        return here + of(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for part in get_args(annotation) for each in of(part))
    return here


def check(options: object) -> None:
    """Check the numbers of a dataclass against its annotations.

    Values of a configuration are checked when it is read; use this for dataclasses that may also
    be created in other ways.

    Raises
    ------
    RangeError
        A number is out of range; the message names the field.
    """
    for name, annotation in hints(type(options)).items():
        for each in of(annotation):
            try:
                each.check(getattr(options, name))
            except RangeError as error:
                raise RangeError(f"{name} = {getattr(options, name)}: {error}") from None
