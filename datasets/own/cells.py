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

    try:
        if path.suffix == ".csv":
            types = dict.fromkeys(as_text, pa.string())
            convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True)
            table = csv.read_csv(path, convert_options=convert)
        else:
            table = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RefusedError(f"table: {path.name} cannot be read", [str(error)]) from None
    duplicates = sorted(name for name, count in Counter(table.column_names).items() if count > 1)
    if duplicates:
        raise RefusedError(
            f"table: {path.name} has duplicate columns ({len(duplicates)})", duplicates
        )
    return table


def require(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """Check that a table has some columns.

    Raises
    ------
    DataError
        A column is missing.
    """
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"table: {path.name} has no column {', '.join(missing)}")


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
