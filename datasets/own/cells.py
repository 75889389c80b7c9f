"""Reading of tables, and encoding of their cells as numbers, with errors by line and column.

No model sees groups (such as patients) and times of rows. Groups are compared without spaces at
their ends and the ".0" that other programs add to numbers.
"""

from __future__ import annotations

import csv as text_csv
import difflib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.datasets import grammar
from coterie.datasets.files.fingerprint import record, recorded
from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.preprocessing import Column, Floats
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = (".csv", ".parquet")


class Wrong(NamedTuple):
    """Cell that cannot be used."""

    column: str
    why: str  # without the cell
    cell: str | float | None = None  # stays on the institution's node

    @property
    def plain(self) -> str | float | None:
        """Cell, as categories are compared."""
        return grammar.plain(self.cell) if isinstance(self.cell, str) else self.cell


Errors = dict[int, list[Wrong]]
"""Cells that cannot be used, by row."""
_BLOCK = 1 << 24
_SEPARATORS = ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"))
_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


def open_table(path: Path) -> pa.Table:
    """Read a .csv file, whose cells are texts as written, or a .parquet file."""
    # DataError: the file cannot be read, or has duplicate columns.
    import pyarrow as pa  # slow to import
    from pyarrow import parquet

    try:
        with recorded() as reads:
            record(path)
            read = _read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        if not reads.hold():
            raise DataError(f"table: {path.name} changed while it was read: run again")
        return normalised(read, path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def normalised(table: pa.Table, path: Path) -> pa.Table:
    """Return a table with stripped column names in Unicode NFC; RefusedError: duplicates."""
    table = table.rename_columns([grammar.plain(name) for name in table.column_names])
    duplicates = sorted(name for name, count in Counter(table.column_names).items() if count > 1)
    if duplicates:
        raise RefusedError(
            f"table: {path.name} has duplicate columns ({len(duplicates)})"
            f"{_asked_header(table.column_names)}",
            duplicates,
        )
    return table


def _read_csv(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import compute, csv

    if cause := _start(path):
        raise DataError(f"table: {path.name} {cause}")
    names = next((cells for _, cells in _records(path)), [])
    if not names:
        raise DataError(f"table: {path.name} is empty")
    parse = csv.ParseOptions(newlines_in_values=True)
    types = dict.fromkeys(names, pa.string())
    convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    try:
        table = csv.read_csv(path, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid:  # maybe a line is longer than a block
        whole = csv.ReadOptions(block_size=min(path.stat().st_size, 2**31 - 1))
        table = csv.read_csv(path, whole, parse, convert)
    with path.open("rb") as file:
        has_breaks = any(b'"' in block for block in iter(lambda: file.read(_BLOCK), b"")) and any(
            compute.any(compute.match_substring(cells, end)).as_py()
            for cells in table.columns
            for end in "\r\n"
        )
    rows = sum(1 for _ in _records(path, strict=True)) - 1 if has_breaks else table.num_rows
    if table.column_names != names or table.num_rows != rows:
        raise DataError(
            f"table: {path.name} has {table.num_rows} rows by one reading of its quotes and {rows} "
            "by another: write it again with a quote at both ends of each quoted cell"
        )
    return table


def _records(path: Path, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each record of a CSV file, and its cells; an empty line is none."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, line = text_csv.reader(file, strict=strict), 1
        limit = text_csv.field_size_limit(2**31 - 1)  # of a cell
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except text_csv.Error as error:
            raise DataError(
                f"table: {path.name}, line {line} cannot be read: {error}: close each quote, and "
                "write one inside a cell twice"
            ) from None
        finally:
            text_csv.field_size_limit(limit)


def _unreadable(path: Path, error: Exception) -> DataError:
    """Return the error of a file that a library cannot read, with its line if it can be found."""
    details = [" ".join(str(error).split())]
    if path.suffix != ".csv" or isinstance(error, OSError):
        why = getattr(error, "strerror", None) or "it is damaged, or no Parquet file"
        return RefusedError(f"table: {path.name} cannot be read: {why}", details)
    if cause := _start(path, -1):
        return DataError(f"table: {path.name} {cause}")
    width = 0
    for line, cells in _records(path):
        width = width or len(cells)
        if len(cells) != width:
            return DataError(
                f"table: {path.name} cannot be read: line {line} has {len(cells)} cells, and the "
                f"header {width}: correct its commas and quotes"
            )
    return RefusedError(f"table: {path.name} cannot be read", details)


def _start(path: Path, size: int = 65_536) -> str:
    """Return why the first bytes (-1: all) are no CSV table, or ""."""
    with path.open("rb") as file:
        head = file.read(size)
    if head.startswith(b"PK\x03\x04"):
        return "is a spreadsheet or an archive: save it as CSV"
    if b"\0" in head or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16, or no text: save it as CSV in UTF-8"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(head) != size or error.end < size:  # not cut off at the end
            line = head.count(b"\n", 0, error.start) + 1
            return f"is not UTF-8 in line {line}: save it as CSV in UTF-8"
        text = head[: error.start].decode("utf-8-sig")
    try:
        lines = [line for line in text_csv.reader(io.StringIO(text, newline="")) if line]
    except text_csv.Error:
        return ""  # the parser of the whole file says why
    for separator, called in _SEPARATORS:
        if lines and len(lines[0]) == 1 and separator in lines[0][0]:
            return f"separates columns by {called}: save it with commas, and points in numbers"
    if len(head) == size:
        lines = lines[:-1] or lines  # the last one may be cut off
    width, count = Counter(map(len, lines)).most_common(1)[0] if lines else (0, 0)
    if len(lines[:1]) and len(lines[0]) < width and count > 1:
        return (
            f"has {len(lines[0])} cells in line 1 and {width} in most others: the first line must "
            "be the header, with a name for each column; delete what stands above it"
        )
    return ""


def _asked_header(names: Iterable[str]) -> str:
    """Return a hint for a table that has numbers among the names of its columns, or none."""
    is_odd = any(not name or grammar.is_number(name) for name in names)
    return "; is its header missing?" if is_odd else ""


def similar(name: str, names: Iterable[str]) -> str:
    """Return the column with the most similar name, regardless of case and marks; "" if none is."""
    plain = {"".join(filter(str.isalnum, each.casefold())): each for each in names}
    close = difflib.get_close_matches("".join(filter(str.isalnum, name.casefold())), plain, 1)
    return plain[close[0]] if close else ""


def require(table: pa.Table, names: Sequence[str], path: Path) -> None:
    """Check that a table has some columns; RefusedError names those that are missing."""
    missing = [name for name in names if grammar.plain(name) not in table.column_names]
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
    """Encode some columns' cells as numbers (N, columns); return also the invalid ones by row."""
    # Categories become codes, dates and durations days, truth values 1 and 0, others NaN.
    errors: Errors = defaultdict(list)
    values = np.empty((table.num_rows, len(columns)))
    for index, column in enumerate(columns):
        cells = table.column(grammar.plain(column.name))
        if why := nested(cells):
            raise RefusedError(
                f"table: column {column.name} cannot be used: {why}; leave it out, or write a "
                "number per column",
                [str(cells.type)],
            )
        values[:, index] = _values(cells, column, errors)
        if column.kind == "number":
            low = -np.inf if column.low is None else column.low
            high = np.inf if column.high is None else column.high
            numbers = values[:, index]
            for row in np.flatnonzero((numbers < low) | (numbers > high)):
                wrong = Wrong(column.name, f"is not {low} to {high}", numbers[row])
                errors[int(row)].append(wrong)
                numbers[row] = np.nan
    return values, errors


def nested(cells: pa.ChunkedArray) -> str:
    """Return why the type of a column has no cells that are read; "" if it has."""
    from pyarrow import types

    kind = cells.type.value_type if types.is_dictionary(cells.type) else cells.type
    known = (
        types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal,
        types.is_string, types.is_large_string, types.is_string_view, types.is_date,
        types.is_timestamp, types.is_duration,
    )  # fmt: skip
    return (
        ""
        if any(is_kind(kind) for is_kind in known)
        else f"its cells are of type {str(kind).split('<')[0]}"
    )


def _values(cells: pa.ChunkedArray, column: Column, errors: Errors) -> Floats:
    """Return a column as numbers; NaN where a cell is missing or invalid."""
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if types.is_duration(cells.type):
        counts = cells.cast(pa.int64()).cast(pa.float64(), safe=False)
        cells = compute.divide(counts, _DAY[cells.type.unit])
    texts, kind = cells, cells.type
    if column.kind == "number":
        if types.is_string(kind):  # all of them numbers or missing?
            marks = pa.array([*grammar.MISSING, *column.na_values])
            texts = compute.if_else(compute.is_in(cells, marks), None, cells)
        elif types.is_boolean(kind):
            texts = cells.cast(pa.uint8())
        try:
            floats: Floats = texts.cast(pa.float64(), safe=False).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass  # parse each text, to find the invalid ones
        else:
            values = np.where(np.isin(floats, column.na_numbers), np.nan, floats)
            for row in np.flatnonzero(np.isinf(values)):
                errors[int(row)].append(Wrong(column.name, "is infinite", values[row]))
            return np.where(np.isinf(values), np.nan, values)
    coded = cells.cast(pa.large_string()).combine_chunks().dictionary_encode()
    read, shown = _reader(column), coded.dictionary.to_pylist()
    values, why = np.full(len(shown) + 1, np.nan), {}
    for index, cell in enumerate(shown):
        try:
            values[index] = read(grammar.plain(cell))
        except ValueError as error:
            why[index] = str(error)
    index_n = coded.indices.fill_null(-1).to_numpy()
    for row in np.flatnonzero(np.isin(index_n, [*why])) if why else ():
        index = index_n[row]
        errors[int(row)].append(Wrong(column.name, why[index], shown[index]))
    result: Floats = values[index_n]
    return result


def _reader(column: Column) -> Callable[[str], float]:
    marks = {"", *map(grammar.plain, column.na_values)}
    code = grammar.codes(column.categories)

    def category(cell: str) -> float:
        try:
            return code(cell)
        except ValueError:
            if cell in grammar.MISSING:
                return np.nan
            raise

    def number(cell: str) -> float:
        value = grammar.TRUTHS[cell] if cell in grammar.TRUTHS else grammar.number(cell)
        if value in column.na_numbers:
            return np.nan
        if np.isinf(value):
            raise ValueError("is infinite")
        return value

    kinds = {"number": number, "category": category, "date": grammar.date}
    read = kinds[column.kind]
    if column.kind != "category":
        marks |= {*grammar.MISSING}
    return lambda cell: np.nan if cell in marks else read(cell)


def add_missing(table: pa.Table, values: Floats, columns: Sequence[Column], errors: Errors) -> None:
    """Add the missing cells of columns, `values` (N, columns), to the errors."""
    for row, index in np.argwhere(np.isnan(values)).tolist():
        name, wrong = columns[index].name, errors.setdefault(row, [])
        if all(each.column != name for each in wrong):  # invalid cells are NaN, too
            cell = table.column(grammar.plain(name))[row].as_py()
            is_text = isinstance(cell, str) and bool(cell.strip())
            wrong.append(Wrong(name, "is missing", cell if is_text else None))


def named(errors: Errors, path: Path) -> list[str]:
    """Format errors, one text per row, with the line of a CSV file."""
    unit, numbers = "row", {row: row + 1 for row in errors}
    if path.suffix == ".csv" and errors:
        lines = enumerate(itertools.islice(_records(path), 1, max(errors) + 2))
        unit, numbers = "line", {row: line for row, (line, _) in lines if row in errors}
    return [
        f"{path.name}, {unit} {numbers[row]}: {'; '.join(map(shown, errors[row]))}"
        for row in sorted(errors)
    ]


def shown(wrong: Wrong) -> str:
    """Describe a cell, its column and what is wrong with it."""
    if wrong.cell is None:
        return f"{wrong.column} {wrong.why}"
    cell = repr(wrong.cell[:80]) if isinstance(wrong.cell, str) else f"{wrong.cell:g}"
    return f"{wrong.column} {cell} {wrong.why}"


def read_groups(
    table: pa.Table, name: str, path: Path, errors: Errors
) -> npt.NDArray[np.str_] | None:
    """Return the group of each row, (N,); None without `name`. Add rows without one to `errors`."""
    if not name:
        return None
    texts = [re.sub(r"^(\d+)\.0$", r"\1", text) for text in _texts(table, name, path)]
    for row in (row for row, text in enumerate(texts) if text in grammar.MISSING):
        errors.setdefault(row, []).append(Wrong(name, "is missing"))
    return np.array(texts, dtype=np.str_)


def read_times(table: pa.Table, name: str, path: Path, errors: Errors) -> Floats | None:
    """Return the time of each row, (N,); None without `name`. Add rows without one to `errors`."""
    import pandas as pd

    if not name:
        return None
    texts = pd.Series(_texts(table, name, path)).replace([*grammar.MISSING], None)
    times = pd.to_numeric(texts, errors="coerce")
    if (times.isna() & texts.notna()).any():
        stamps = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
        times = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    times_n: Floats = times.to_numpy(dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(times_n)).tolist():
        why = "is not like 2024-01-31" if texts[row] else "is missing"
        errors.setdefault(row, []).append(Wrong(name, why, texts[row] or None))
    return times_n


def _texts(table: pa.Table, name: str, path: Path) -> list[str]:
    import pyarrow as pa

    require(table, [name], path)
    cells = table.column(grammar.plain(name))
    if why := nested(cells):
        raise DataError(f"table: column {name} of {path.name} cannot be used: {why}")
    return [grammar.plain(text or "") for text in cells.cast(pa.string()).to_pylist()]
