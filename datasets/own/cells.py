"""Reading of tables and encoding of their cells as numbers, with errors by line."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
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
    """Read a CSV or Parquet file.

    Parameters
    ----------
    path : Path
        File with the suffix .csv or .parquet.
    as_text : collection of str
        Columns of a CSV that are not parsed as numbers.

    Raises
    ------
    DataError
        The file cannot be read, or has duplicate columns.
    """
    import pyarrow as pa  # slow to import
    from pyarrow import csv, parquet

    if path.suffix == ".csv" and (cause := _no_csv(path)):
        raise DataError(f"table: {path.name} {cause}")
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
            f"table: {path.name} has duplicate columns ({len(duplicates)})", duplicates
        )
    return table


def _no_csv(path: Path) -> str:
    """Return why the start of a file is not that of a CSV table, and the remedy; "" if it is."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if head.startswith(b"PK\x03\x04"):
        return "is a spreadsheet or an archive: save it as CSV"
    if b"\0" in head:
        return "is UTF-16, or no text: save it as CSV in UTF-8"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.end < len(head):  # not cut off at the end
            return "is not UTF-8: save it as CSV in UTF-8"
        text = head[: error.start].decode("utf-8-sig")
    names = text.partition("\n")[0].strip().replace('"', "").split(",")
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            return f"separates columns by {called}: save it with commas, and points in numbers"
    is_cell = all(name.strip() in ("", "?") or is_number(name) for name in names)
    if text and is_cell and names != [str(k) for k in range(len(names))]:
        return "has no header: its first line has numbers instead of the names of columns; add them"
    return ""


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def require(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """Check that a table has some columns.

    Raises
    ------
    RefusedError
        A column is missing.
    """
    missing = [name for name in names if name not in table.column_names]
    if missing:
        hint = "; is its header missing?" if any(map(is_number, table.column_names)) else ""
        raise RefusedError(
            f"table: {path.name} has no column {', '.join(missing)}{hint}",
            [f"it has {', '.join(table.column_names)}"],
        )


def encoded(table: pa.Table, columns: Sequence[Column]) -> tuple[Floats, Errors]:
    """Encode the cells of some columns as numbers.

    Categories become their code, dates days since 1970, and the `na_values` of a column NaN.

    Returns
    -------
    values : ndarray, (N, columns)
        Encoded cells; NaN where a cell is missing or invalid.
    errors : dict of int to list of str
        Descriptions of the invalid cells, by row.
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
