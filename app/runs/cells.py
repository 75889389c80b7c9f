"""CSV text, and cells that a spreadsheet would evaluate as formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, a line each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def safe(cell: T) -> T | str:
    """Return a cell with a "'" in front if a spreadsheet would evaluate it as a formula.

    Numbers are not changed, nor are negative ones.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_of(frame: DataFrame) -> str:
    """Return a frame as CSV in full precision, without its index; NaN is empty."""
    texts = frame.select_dtypes(exclude="number").columns
    return str(frame.assign(**{name: frame[name].map(safe) for name in texts}).to_csv(index=False))
