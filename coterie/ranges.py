"""Ranges of option values, stated in the type of a field: `Annotated[int, Range(1)]`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import UnionType
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
    for name, annotation in get_type_hints(type(options), include_extras=True).items():
        for each in of(annotation):
            try:
                each.check(getattr(options, name))
            except RangeError as error:
                raise RangeError(f"{name} = {getattr(options, name)}: {error}") from None
