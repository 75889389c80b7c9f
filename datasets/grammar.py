"""Meaning of a table's cells and of the classes of an outcome, by docs/reference/cells.md."""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

MISSING = (
    "", "NA", "N/A", "n/a", "NaN", "-NaN", "nan", "-nan", "NULL", "null", "#N/A", "#N/A N/A", "#NA",
    "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
)  # fmt: skip
"""Texts that mean a missing value, unless a class or a category has that name."""
UNNAMED = (*MISSING, "None", "<NA>", "NaT")
"""Texts that are a class only if the run names it: Python writes them for a missing value."""
TRUTHS = {"TRUE": 1.0, "True": 1.0, "true": 1.0, "FALSE": 0.0, "False": 0.0, "false": 0.0}
_INVISIBLE = "\u200b\u2060\ufeff"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d|\d{8})"
    r"([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?",
    re.ASCII,
)
_EPOCH = datetime.date(1970, 1, 1)


def plain(text: str) -> str:
    """Return a text in Unicode NFC, without white space and invisible characters at its ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).strip().strip(_INVISIBLE)
    return text.strip()


def number(text: str) -> float:
    """Parse a number, which may be infinite or NaN; ValueError for other texts."""
    if is_number(text):
        return float(text)
    raise ValueError("is not a number")


def is_number(text: str) -> bool:
    """Return whether a text is a number, which may be infinite or NaN."""
    return bool(_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def date(text: str) -> float:
    """Parse an ISO 8601 date, with or without a time: days since 1970; ValueError otherwise."""
    match = _DATE.fullmatch(text)
    if not match:
        raise ValueError("is not a date")
    try:
        return (datetime.date.fromisoformat(match[1]) - _EPOCH).days
    except ValueError:
        raise ValueError("is not a date") from None


def codes(names: Sequence[str]) -> Callable[[str], int]:
    """Return the function from cells to indices of named classes; ValueError for other texts."""
    # A cell is the name itself; else 1.0 also means a class 1, and TRUE the class true, True or 1.
    exact = {plain(name): index for index, name in enumerate(names)}
    count = Counter(map(_value, exact))
    loose = {_value(name): index for name, index in exact.items() if count[_value(name)] == 1}

    def code(cell: str) -> int:
        index = exact.get(cell, loose.get(_value(cell)))
        if index is None:
            raise ValueError("is not a category")
        return index

    return code


def _value(text: str) -> str:
    """Return the text by which spellings of a whole number or a truth value are equal."""
    if text in TRUTHS:
        return f"{TRUTHS[text]:g}"
    match = _WHOLE.fullmatch(text)
    return match[1] if match else text
