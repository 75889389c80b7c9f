"""Columns of the CSV files that describe a topology, a schedule or a clock."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

N = TypeVar("N", int, float)


def fault_in(path: Path, what: str, kind: type[Exception]) -> Callable[[str], Exception]:
    """Return a function that makes an error of the reason why a file is invalid."""
    return lambda reason: kind(f"{what} file {path}: {reason}")


def read_columns(
    path: Path, names: Sequence[str], kind: type[N], invalid: Callable[[str], Exception]
) -> Iterator[tuple[int, list[N]]]:
    """Yield the number of each line and its values; `invalid` makes an error of a reason."""
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except OSError as error:
        raise invalid(error.strerror or "cannot be read") from None
    except ValueError:
        raise invalid("not UTF-8 text") from None
    for number, line in enumerate(lines, start=2):
        try:
            values = [kind(line[name]) for name in names]
        except (KeyError, TypeError, ValueError):
            numbers = "integers" if kind is int else "numbers"
            columns = f"{', '.join(names[:-1])} and {names[-1]}"
            raise invalid(f"line {number}: needs {numbers} in the columns {columns}") from None
        yield number, values
