"""Reading of tables and encoding of their cells as numbers, with errors by line."""

from __future__ import annotations

import csv as text_csv
import datetime
import difflib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".csv", ".parquet")
Floats = npt.NDArray[np.float64]
Errors = dict[int, list[str]]
"""Errors by row; they quote cells and must stay on the institution's node."""
_HEAD = 65_536
"""Bytes at the start of a file that are checked before it is parsed."""
_EPOCH = datetime.date(1970, 1, 1)


def open_table(path: Path, as_text: Collection[str] = ()) -> pa.Table:
    """Read a .csv or .parquet file; CSV columns `as_text` are not parsed as numbers.

    DataError: the file cannot be read, or has duplicate columns.
    """
    import pyarrow as pa  # slow to import
    from pyarrow import csv, parquet

    if path.suffix == ".csv":
        _check_csv(path)
    try:
        if path.suffix == ".csv":
            types = dict.fromkeys(as_text, pa.string())
            convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True)
            table = csv.read_csv(path, convert_options=convert)
        else:
            table = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"table: {path.name} cannot be read", [str(error)]) from None
    duplicates = sorted(name for name, count in Counter(table.column_names).items() if count > 1)
    if duplicates:
        raise RefusedError(
            f"table: {path.name} has duplicate columns ({len(duplicates)})"
            f"{_asked_header(table.column_names)}",
            duplicates,
        )
    return table


def _check_csv(path: Path) -> None:
    """Check that the start of a file is that of a CSV table with a header.

    The message of the DataError has the cause and the remedy.
    """
    cause, lines = _start(path)
    if cause:
        raise DataError(f"table: {path.name} {cause}")
    if len(lines) and _is_data(lines[0], lines[1:]):
        raise RefusedError(
            f"table: {path.name}, line 1 has no header but the cells of an example: add a line "
            "with the names of the columns above it",
            [f"line 1 is {', '.join(lines[0])[:80]}"],
        )


def _start(path: Path) -> tuple[str, list[list[str]]]:
    """Return why a file is no CSV table, or "", and the cells of its first lines."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        return f"cannot be read: {error.strerror}", []
    if head.startswith(b"PK\x03\x04"):
        return "is a spreadsheet or an archive: save it as CSV", []
    if b"\0" in head:
        return "is UTF-16, or no text: save it as CSV in UTF-8", []
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.end < len(head):  # not cut off at the end
            return "is not UTF-8: save it as CSV in UTF-8", []
        text = head[: error.start].decode("utf-8-sig")
    try:
        lines = [*text_csv.reader(text.splitlines())]
    except text_csv.Error:
        return "", []  # the parser of the whole file says why
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if lines and len(lines[0]) == 1 and separator in lines[0][0]:
            return f"separates columns by {called}: save it with commas, and points in numbers", []
    return "", [[cell.strip() for cell in line] for line in lines]


def _is_data(names: Sequence[str], below: Iterable[Sequence[str]]) -> bool:
    """Return whether the first line of a table looks like an example instead of a header.

    Each cell of it is a number, a date or a mark of a missing value, or occurs again below.
    """
    if names == [str(k) for k in range(len(names))]:
        return False
    seen: list[set[str]] = [set() for _ in names]
    for line in below:
        for cell, cells in zip(line, seen, strict=False):
            cells.add(cell)
    return all(
        name in ("", "?") or is_number(name) or _is_date(name) or name in cells
        for name, cells in zip(names, seen, strict=True)
    )


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _asked_header(names: Iterable[str]) -> str:
    """Return a hint for a table that has numbers among the names of its columns."""
    return "; is its header missing?" if any(map(is_number, names)) else ""


def similar(name: str, names: Iterable[str]) -> str:
    """Return the column with the most similar name, regardless of case and marks; "" if none is."""
    plain = {"".join(filter(str.isalnum, each.casefold())): each for each in names}
    close = difflib.get_close_matches("".join(filter(str.isalnum, name.casefold())), plain, 1)
    return plain[close[0]] if close else ""


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def require(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """Check that a table has some columns; RefusedError names those that are missing."""
    missing = [name for name in names if name not in table.column_names]
    if missing:
        others = [each for each in table.column_names if each not in names]
        meant = [f'{name}: did you mean "{similar(name, others)}"?' for name in missing]
        raise RefusedError(
            f"table: {path.name} has no column {', '.join(missing)}"
            f"{_asked_header(table.column_names)}",
            [*(each for each in meant if '""' not in each),
             f"it has {', '.join(table.column_names)}"],
        )  # fmt: skip


def encoded(table: pa.Table, columns: Sequence[Column]) -> tuple[Floats, Errors]:
    """Encode the cells of some columns as numbers.

    Categories become their code, dates days since 1970, and the `na_values` of a column NaN. Return
    the cells (N, columns), NaN where one is missing or invalid, and descriptions of the invalid
    cells by row.
    """
    errors: Errors = defaultdict(list)
    values = np.empty((table.num_rows, len(columns)))
    for index, column in enumerate(columns):
        values[:, index] = _numbers(table, column, errors)
        if column.kind == "number":
            low = -np.inf if column.low is None else column.low
            high = np.inf if column.high is None else column.high
            cells = values[:, index]
            for row in np.flatnonzero((cells < low) | (cells > high)):
                errors[int(row)].append(f"{column.name} {cells[row]:g} is not {low} to {high}")
                cells[row] = np.nan
    return values, errors


def named(errors: Errors, path: Path) -> list[str]:
    """Format errors, one text per row, with the line of a CSV file."""
    unit, first = ("line", 2) if path.suffix == ".csv" else ("row", 1)
    return [
        f"{path.name}, {unit} {row + first}: {'; '.join(errors[row])}" for row in sorted(errors)
    ]


def _numbers(table: pa.Table, column: Column, errors: Errors) -> Floats:
    import pyarrow as pa

    cells = table.column(column.name)
    if column.kind == "number":
        if pa.types.is_boolean(cells.type):
            cells = cells.cast(pa.uint8())
        try:
            floats: Floats = cells.cast(pa.float64()).to_numpy()
            is_missing = ~np.isfinite(floats) | np.isin(floats, column.na_numbers)
            return np.where(is_missing, np.nan, floats)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # parse each cell, to find the invalid ones
    read = {"number": _number, "category": _category, "date": _date}[column.kind]
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells.cast(pa.string()).to_pylist()):
        if cell is not None and cell.strip() and cell.strip() not in column.na_values:
            try:
                values[row] = read(cell.strip(), column)
            except ValueError:
                errors[row].append(f"{column.name} {cell!r} is not a {column.kind}")
    return values


def _number(cell: str, column: Column) -> float:
    value = float(cell)
    return value if np.isfinite(value) and value not in column.na_numbers else np.nan


def _category(cell: str, column: Column) -> float:
    return column.categories.index(cell)


def _date(cell: str, _: Column) -> float:
    return (datetime.date.fromisoformat(cell[:10]) - _EPOCH).days
