"""Column schema that institutions share before they train on tables: schema.toml.

It describes each column - a number with unit and range, a category with its values, or a date - and
has a digest by which institutions check that theirs is the same. It contains no rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.datasets.own.cells import encoded, is_number, named, similar
from coterie.datasets.preprocessing import Column, Floats
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "schema.toml"
_WRONG = (*(tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, KeyError, AttributeError),)
"""Errors that an invalid file can raise."""
_KINDS = ("number", "category", "date")
_KEYS = {field.name.replace("_", "-") for field in fields(Column)} - {"name"}
_TYPES = (
    ("kind", (str,), "a text"), ("unit", (str,), "a text"),
    ("low", (float, int), "a number"), ("high", (float, int), "a number"),
)  # fmt: skip
_DIGITS = 16
_SHOWN = 3
_MAX_CATEGORIES = 20
_MIN_NUMBERS = 10
"""Number of different numbers above which a column with some texts is no category."""
MARKS = ("?", "-", "--", ".", "n/a", "N/A", "#N/A", "na", "NA", "nan", "NaN", "null", "NULL")
"""Cells that a draft takes for missing values."""
Schema = Mapping[str, Column]
"""Columns by name, including the label."""


def read_schema(folder: Path) -> Schema:
    """Read schema.toml in a peer's folder, or in its parent.

    Raises
    ------
    DataError
        The file is missing or invalid.
    """
    path = next((p for p in (folder / FILE, folder.parent / FILE) if p.is_file()), None)
    if path is None:
        raise DataError(f"table: table.schema is set, but there is no {FILE} in data-dir")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: _column(name, entry) for name, entry in content["columns"].items()}
    except _WRONG as error:
        raise DataError(f"table: {FILE} is not a schema: {error}") from None


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    if unknown := entry.keys() - _KEYS:
        raise DataError(f"table: {FILE}: column {name}: unknown key {', '.join(sorted(unknown))}")
    values = {key.replace("-", "_"): value for key, value in entry.items()}
    for key, kinds, noun in _TYPES:
        if type(values.get(key, kinds[0]())) not in kinds:
            raise DataError(f"table: {FILE}: column {name}: {key} must be {noun}")
    for key in ("categories", "na_values", "cuts"):
        cells = values.get(key, [])
        if not isinstance(cells, list):
            raise DataError(f"table: {FILE}: column {name}: {key} must be a list")
        values[key] = tuple(cells if key == "cuts" else map(str, cells))
    column = Column(name, **values)
    _check_cuts(column)
    _check_scale(column)
    repeats = len(set(column.categories)) < len(column.categories)
    is_category = column.kind == "category"
    if column.kind not in _KINDS or repeats or is_category != bool(column.categories):
        raise DataError(
            f"table: {FILE}: column {name}: kind must be one of {', '.join(_KINDS)}; only a "
            "category has categories, without duplicates"
        )
    return column


def _check_cuts(column: Column) -> None:
    is_numbers = all(type(cut) in (int, float) and math.isfinite(cut) for cut in column.cuts)
    is_rising = is_numbers and all(a < b for a, b in itertools.pairwise((0, *column.cuts)))
    if column.cuts and (column.kind != "number" or not is_rising):
        raise DataError(
            f"table: {FILE}: column {column.name}: cuts must be ascending numbers above 0, of a "
            "column of numbers"
        )


def _check_scale(column: Column) -> None:
    """Refuse limits and constants of a column that are no numbers, or do not belong to it.

    Raises
    ------
    DataError
        Names the column, the key and the remedy.
    """
    where = f"table: {FILE}: column {column.name}"
    for key in ("low", "high", "mean", "scale"):
        value = getattr(column, key)
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise DataError(f"{where}: {key} must be a number")
    if (column.mean is None) != (column.scale is None):
        raise DataError(f"{where}: set both mean and scale, or neither")
    if column.scale is not None and (column.scale <= 0 or column.kind == "category"):
        raise DataError(f"{where}: scale must be above 0; a category has neither mean nor scale")


def digest(schema: Schema) -> str:
    """Return a digest of a schema, independent of the order of its lines."""
    columns = {name: asdict(column) for name, column in schema.items()}
    for entry in columns.values():
        for key in ("na_values", "cuts", "mean", "scale"):  # keeps digests of earlier schemas
            if entry[key] in ((), None):
                del entry[key]
    text = json.dumps(columns, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def described(schema: Schema) -> dict[str, Any]:
    """Return the content of schema.toml, without empty fields."""
    columns = {}
    for name, column in schema.items():
        entry = {k.replace("_", "-"): v for k, v in asdict(column).items() if k != "name"}
        entry |= {"categories": list(column.categories), "na-values": list(column.na_values)}
        entry["cuts"] = list(column.cuts)
        columns[name] = {key: value for key, value in entry.items() if value not in (None, "", [])}
    return {"columns": columns}


def drafted(
    tables: Mapping[str, pa.Table], na_values: Sequence[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """Draft the schema of tables that have the same columns.

    The range of a number is that of all tables, half as wide again on both sides and rounded, so
    that it finds other units and typing errors but not the extremes of a table. A category has the
    values of all tables.

    Parameters
    ----------
    tables : Mapping of str to Table
        Tables by name.
    na_values : sequence of str
        Cells that mean a missing value, besides `MARKS`.

    Returns
    -------
    schema : Schema
        Columns that all tables have.
    left_out : dict of str to str
        Reason for each column that is not in the schema.
    """
    schema, left_out = {}, {}
    for name in dict.fromkeys(name for table in tables.values() for name in table.column_names):
        having = [table for table in tables.values() if name in table.column_names]
        if len(having) < len(tables):
            left_out[name] = _absent(name, tables)
        elif column := _drafted(name, having, na_values):
            schema[name] = column
        else:
            left_out[name] = _texts_among_numbers(name, tables, na_values) or (
                "neither numbers, dates nor at most 20 categories"
            )
    return schema, left_out


def _absent(name: str, tables: Mapping[str, pa.Table]) -> str:
    """Return which tables lack a column, or which ones alone have it, and what they may call it."""
    having = {key: table for key, table in tables.items() if name in table.column_names}
    lacking = {key: table for key, table in tables.items() if key not in having}
    model = next(iter(having.values()))
    if len(having) < len(lacking):
        return f"only in {', '.join(having)}{_renamed(name, next(iter(lacking.values())), model)}"
    return "; ".join(
        f"not in {key}{_renamed(name, table, model)}" for key, table in lacking.items()
    )


def _renamed(name: str, table: pa.Table, model: pa.Table) -> str:
    """Return which column of a table may be the missing one, by its name or else its place."""
    others = [each for each in table.column_names if each not in model.column_names]
    meant, place = similar(name, others), model.column_names.index(name)
    if not meant and place < table.num_columns and table.column_names[place] in others:
        meant = table.column_names[place]
    return f' (did you mean "{meant}"? rename it)' if meant else ""


def _texts_among_numbers(
    name: str, tables: Mapping[str, pa.Table], na_values: Sequence[str]
) -> str:
    """Return file, line and value of the first texts in a column of numbers; "" if it is none."""
    column = Column(name, na_values=(*MARKS, *na_values))
    wrong, known = [], 0
    for key, table in tables.items():
        values, errors = encoded(table, [column])
        known += int((~np.isnan(values)).sum())
        wrong += [f"{Path(key).parent / line}" for line in named(errors, Path(key))]
    if known <= len(wrong):
        return ""
    more = f" and {len(wrong) - _SHOWN} other lines" if len(wrong) > _SHOWN else ""
    return (
        f"{'; '.join(wrong[:_SHOWN])}{more}: write only the number, or name the marks of missing "
        "values with --na-values"
    )


def _drafted(name: str, tables: Sequence[pa.Table], na_values: Sequence[str]) -> Column | None:
    """Return the first kind of column that fits all cells; None if there is none."""
    texts = {
        str(cell).strip()
        for table in tables
        for cell in table.column(name).to_pylist()
        if cell is not None
    }
    marks = tuple(sorted(texts & {*MARKS, *na_values}))
    texts -= {"", *marks}
    candidates = [Column(name, na_values=marks), Column(name, "date", na_values=marks)]
    if len(texts) <= _MAX_CATEGORIES and sum(map(is_number, texts)) <= _MIN_NUMBERS:
        categories = tuple(sorted(texts))
        candidates.append(Column(name, "category", categories, na_values=marks))
    for column in candidates if texts else ():
        encodings = [encoded(table, [column]) for table in tables]
        if not any(errors for _, errors in encodings):
            if column.kind != "number":
                return column
            low, high = _rounded_range(np.concatenate([cells[:, 0] for cells, _ in encodings]))
            return replace(column, low=low, high=high)
    return None


def _rounded_range(values: Floats) -> tuple[float | None, float | None]:
    """Return the range of values, half as wide again on both sides and rounded outwards.

    Zero remains a limit. None for fewer than two different values.
    """
    values = values[~np.isnan(values)]
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    if not low < high:
        return None, None
    step = 10.0 ** math.floor(math.log10(high - low))
    first = math.floor((low - (high - low) / 2) / step) * step
    last = math.ceil((high + (high - low) / 2) / step) * step
    if (low, high) == (0, 1):
        first, last = 0.0, 1.0
    first, last = (0.0 if low >= 0 else first), (0.0 if high <= 0 else last)
    return float(f"{first:.12g}"), float(f"{last:.12g}")
