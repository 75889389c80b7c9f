"""Escape table cells that a spreadsheet would evaluate as formulas."""

from __future__ import annotations

import re
from typing import TypeVar

T = TypeVar("T")

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def safe(cell: T) -> T | str:
    """Return a cell with a "'" in front if a spreadsheet would evaluate it as a formula.

    Numbers are not changed, nor are negative ones.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell
