"""Tables opened, and their cells as numbers: what cannot be read is named by line."""

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
Wrong = dict[int, list[str]]
"""Row -> what is wrong in it; for the institution's own eyes."""
_EPOCH = datetime.date(1970, 1, 1)


def open_table(path: Path, as_text: Collection[str] = ()) -> pa.Table:
    """A CSV or Parquet file.

    Parameters
    ----------
    as_text : columns of a CSV whose cells are not to be taken for numbers.

    Raises
    ------
    DataError
        It cannot be read.
    """
    import pyarrow as pa  # slow to import
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".csv":
            types = dict.fromkeys(as_text, pa.string())
            convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True)
            found = csv.read_csv(path, convert_options=convert)
        else:
            found = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RefusedError(f"table: {path.name} cannot be read", [str(error)]) from None
    twice = sorted(name for name, count in Counter(found.column_names).items() if count > 1)
    if twice:
        raise RefusedError(f"table: {path.name} has {len(twice)} columns more than once", twice)
    return found


def require(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """See that a table has some columns.

    Raises
    ------
    DataError : one is missing.
    """
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataError(f"table: {path.name} has no column {', '.join(missing)}")


def encoded(table: pa.Table, columns: Sequence[Column]) -> tuple[Floats, Wrong]:
    """Cells of some columns (N, columns), NaN where one is missing or wrong, and what is wrong.

    Numbers are as they are, categories by their code, dates in days since 1970.
    """
    wrong: Wrong = defaultdict(list)
    values = np.empty((table.num_rows, len(columns)))
    for place, column in enumerate(columns):
        values[:, place] = _numbers(table, column, wrong)
        if column.kind == "number":
            low = -np.inf if column.low is None else column.low
            high = np.inf if column.high is None else column.high
            own = values[:, place]
            for row in np.flatnonzero((own < low) | (own > high)):
                wrong[int(row)].append(f"{column.name} {own[row]:g} is not {low} to {high}")
                own[row] = np.nan
    return values, wrong


def named(wrong: Wrong, path: Path) -> list[str]:
    """What is wrong, a text for each row, by line of a CSV file."""
    where, first = ("line", 2) if path.suffix == ".csv" else ("row", 1)
    return [f"{path.name}, {where} {row + first}: {'; '.join(wrong[row])}" for row in sorted(wrong)]


def _numbers(table: pa.Table, column: Column, wrong: Wrong) -> Floats:
    import pyarrow as pa

    cells = table.column(column.name)
    if column.kind == "number":
        if pa.types.is_boolean(cells.type):
            cells = cells.cast(pa.uint8())
        try:
            found: Floats = cells.cast(pa.float64()).to_numpy()
            return np.where(np.isfinite(found), found, np.nan)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # one by one, to see which
    read = {"number": _number, "category": _category, "date": _date}[column.kind]
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells.cast(pa.string()).to_pylist()):
        if cell is not None and cell.strip():
            try:
                values[row] = read(cell.strip(), column)
            except ValueError:
                wrong[row].append(f"{column.name} {cell!r} is no {column.kind}")
    return values


def _number(cell: str, _: Column) -> float:
    value = float(cell)
    return value if np.isfinite(value) else np.nan


def _category(cell: str, column: Column) -> float:
    return column.categories.index(cell)


def _date(cell: str, _: Column) -> float:
    return (datetime.date.fromisoformat(cell[:10]) - _EPOCH).days
