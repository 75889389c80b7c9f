"""CSV text, and cells that a spreadsheet would evaluate as formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import TypeVar

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
