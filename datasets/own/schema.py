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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from coterie.datasets import grammar
from coterie.datasets.files.fingerprint import content
from coterie.datasets.own.cells import encoded, named, nested, similar
from coterie.datasets.own.scale import publishable
from coterie.datasets.preprocessing import Column, Floats
from coterie.datasets.problem import DataError
from coterie.datasets.quality import survey_tables

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "schema.toml"
_WRONG = (ValueError, RecursionError, KeyError, AttributeError)
"""Errors that an invalid file can raise."""
_KINDS = ("number", "category", "date")
_ROLES = ("group", "time")
_KEYS = {field.name.replace("_", "-") for field in fields(Column)} - {"name"}
_TYPES = (
    ("kind", (str,), "a text"), ("unit", (str,), "a text"), ("role", (str,), "a text"),
    ("low", (float, int), "a number"), ("high", (float, int), "a number"),
)  # fmt: skip
_DIGITS = 16
_SHOWN = 3
_MAX_CATEGORIES = 20
_MIN_NUMBERS = 10
"""Number of different numbers above which a column with some texts is no category."""
_MAX_SHIFT = 0.2
"""Maximum shift of a proposed mean by its rounding, in deviations."""
MARKS = ("?", "-", "--", ".", "na")
"""Cells that a draft takes for missing values, besides those that always are."""
Schema = Mapping[str, Column]
"""Columns by name, including the label."""


def read_schema(folder: Path, dataset: str = "table") -> Schema:
    """Read schema.toml in a peer's folder, or in its parent.

    DataError: the file is missing or invalid.
    """
    path = next((p for p in (folder / FILE, folder.parent / FILE) if p.is_file()), None)
    if path is None:
        raise DataError(f"{dataset}: {dataset}.schema is set, but there is no {FILE} in data-dir")
    try:
        schema = _parsed(content(path).decode("utf-8-sig"))
    except DataError:
        raise
    except _WRONG as error:
        raise DataError(f"{dataset}: {FILE} is not a schema: {error}") from None
    for role in _ROLES:
        if len(names := [name for name, column in schema.items() if column.role == role]) > 1:
            raise DataError(f'table: {FILE}: {", ".join(names)} have role = "{role}": choose one')
    return schema


def _parsed(text: str) -> Schema:
    columns = tomllib.loads(text)["columns"]
    return {name: _column(name, entry) for name, entry in columns.items()}


def agreed(folder: Path, dataset: str, key: str) -> Schema:
    """Read the schema of a run, whose key `schema` is its digest, "file" or, without one, "".

    DataError: this peer's schema has another digest.
    """
    schema = read_schema(folder, dataset) if key else {}
    if key not in ("", "file", digest(schema)):
        raise DataError(
            f"{dataset}: schema.toml does not have the digest {dataset}.schema = {key}: compare it "
            "with the other institutions"
        )
    return schema


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
    if column.role not in ("", *_ROLES) or (column.role and column.categories):
        raise DataError(
            f"table: {FILE}: column {name}: role must be one of {', '.join(_ROLES)}, without "
            "categories"
        )
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

    The message of the DataError names the column, the key and the remedy.
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
        for key in (
            "na_values",
            "cuts",
            "mean",
            "scale",
            "role",
        ):  # keeps digests of earlier schemas
            if entry[key] in ((), None, ""):
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


@dataclass(frozen=True)
class Draft:
    """Draft of a schema, and what the person who corrects it must know."""

    # Columns that all tables have. No entry is the value of fewer than `min_rows` rows.
    schema: Schema
    left_out: dict[str, str]  # reason for each column that is not in the schema
    # Categories of a column that are left out, with their number of rows; they may name persons.
    rare: dict[str, list[str]]
    # Number of values that lie far from all others, by column; it has no range for that reason.
    unbounded: dict[str, int]


def drafted(tables: Mapping[str, pa.Table], min_rows: int, na_values: Sequence[str] = ()) -> Draft:
    """Draft the schema of tables (by name) that have the same columns, for publication.

    Limits, mean and scale of a number come from quantiles and moments of values of all tables
    together, see `coterie.datasets.own.scale.publishable`, and are rounded. At least `min_rows`
    rows are behind a category or a number, because it becomes public. `na_values` are cells that
    mean a missing value, besides `MARKS`.
    """
    draft = Draft({}, {}, {}, {})
    schema: dict[str, Column] = {}
    for name in dict.fromkeys(name for table in tables.values() for name in table.column_names):
        having = [table for table in tables.values() if name in table.column_names]
        if len(having) < len(tables):
            draft.left_out[name] = _absent(name, tables)
        elif why := next(filter(None, (nested(table.column(name)) for table in having)), ""):
            draft.left_out[name] = f"{why}, neither numbers, dates nor texts"
        elif column := _drafted(name, having, na_values, min_rows, draft):
            schema[name] = column
        elif name in draft.rare:
            draft.left_out[name] = f"no value in {min_rows} rows: values of single persons"
        else:
            draft.left_out[name] = _texts_among_numbers(name, tables, na_values) or (
                "neither numbers, dates nor at most 20 categories"
            )
    for name, column in _parsed(tomli_w.dumps(described(schema))).items():  # as a run reads it
        rare = {each.rpartition(" (")[0] for each in draft.rare.get(name, ())}
        for key, table in tables.items():
            errors = encoded(table, [column])[1]
            wrong = {row: each for row, each in errors.items() if _text(each[0].cell) not in rare}
            if wrong:
                cells = named(wrong, Path(key))
                draft.left_out[name] = f"the draft refuses its own table: {cells[0]}"
                schema.pop(name, None)
    return replace(draft, schema=schema)


def _text(cell: object) -> str:
    return grammar.plain(str(cell))


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


def _drafted(
    name: str, tables: Sequence[pa.Table], na_values: Sequence[str], min_rows: int, draft: Draft
) -> Column | None:
    """Return the first kind of column that fits all cells; None if there is none."""
    from pyarrow import compute, types

    rows: Counter[str] = Counter()
    for table in tables:
        for each in compute.value_counts(table.column(name)).to_pylist():
            if each["values"] is not None:
                rows[_text(each["values"])] += each["counts"]
    marks = tuple(sorted(rows.keys() & ({*MARKS, *na_values} - {*grammar.MISSING})))
    for text in (*grammar.MISSING, *marks):
        del rows[text]
    unit = "days" if types.is_duration(tables[0].column(name).type) else ""
    for column in (Column(name, unit=unit, na_values=marks), Column(name, "date", na_values=marks)):
        encodings = [encoded(table, [column]) for table in tables]
        if rows and not any(errors for _, errors in encodings):
            values = np.concatenate([values[:, 0] for values, _ in encodings])
            return _with_numbers(column, values[~np.isnan(values)], min_rows, draft)
    numbers = sum(map(grammar.is_number, rows))
    if not 0 < len(rows) <= _MAX_CATEGORIES or numbers > _MIN_NUMBERS or numbers == len(rows):
        return None
    frequent = tuple(sorted(text for text, count in rows.items() if count >= min_rows))
    if rare := sorted(rows.keys() - {*frequent}):
        draft.rare[name] = [f"{text} ({rows[text]})" for text in rare]
    return Column(name, "category", frequent, na_values=marks) if frequent else None


def _with_numbers(column: Column, values: Floats, min_rows: int, draft: Draft) -> Column:
    """Add range, mean and scale, unless too few values differ."""
    for quality in survey_tables({0: values[:, None]}, [column]):  # none of no values
        values = values[values != quality.code]
    near = publishable(values, min_rows)
    if not len(near):
        return column
    low, high = _rounded_range(near)
    if low is not None and high is not None:
        outside = int(((values < low) | (values > high)).sum())
        if outside:
            draft.unbounded[column.name], low, high = outside, None, None
    scale = _digits(float(near.std()), 2)
    mean, digits = float(near.mean()), 2
    while abs(_digits(mean, digits) - mean) > scale * _MAX_SHIFT:  # a year, a date
        digits += 1
    column = replace(column, mean=_digits(mean, digits), scale=scale)
    return column if column.kind == "date" else replace(column, low=low, high=high)


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _rounded_range(values: Floats) -> tuple[float | None, float | None]:
    """Return a wide range around the middle 90 % of values, rounded outwards; None without width.

    It is three times as wide as that middle. Zero remains a limit.
    """
    if {*np.unique(values)} == {0, 1}:
        return 0.0, 1.0
    low, high = (float(value) for value in np.quantile(values, [0.05, 0.95]))
    if not low < high:
        return None, None
    step = 10.0 ** math.floor(math.log10(high - low))
    first = math.floor((low - (high - low)) / step) * step
    last = math.ceil((high + (high - low)) / step) * step
    first, last = (0.0 if low >= 0 else first), (0.0 if high <= 0 else last)
    return float(f"{first:.12g}"), float(f"{last:.12g}")
