"""Column schema that institutions share before they train on tables: schema.toml, without rows."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from coterie.datasets import grammar
from coterie.datasets.files.fingerprint import content
from coterie.datasets.own.cells import encoded, named, nested, read_groups, similar
from coterie.datasets.own.scale import publishable
from coterie.datasets.preprocessing import Column, Floats, Ints
from coterie.datasets.problem import DataError
from coterie.datasets.quality import survey_tables

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "schema.toml"
_WRONG = (ValueError, RecursionError, KeyError, AttributeError)
"""Errors that an invalid file can raise."""
_ROLES = ("group", "time")
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
    """Read schema.toml in a peer's folder, or its parent; DataError: it is missing or invalid."""
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
    """Read the schema of a run, whose key `schema` is its digest, "file" or, without one, ""."""
    # DataError: this peer's schema has another digest.
    schema = read_schema(folder, dataset) if key else {}
    if key not in ("", "file", digest(schema)):
        raise DataError(
            f"{dataset}: schema.toml does not have the digest {dataset}.schema = {key}: compare it "
            "with the other institutions"
        )
    return schema


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    values = {key.replace("-", "_"): value for key, value in entry.items()}
    for key in ("categories", "na_values"):
        if isinstance(cells := values.get(key), list):
            values[key] = [*map(str, cells)]
    where = f"table: {FILE}: column {name}"
    try:
        column = Column.of_json({**values, "name": name})
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    names, is_category = column.categories, column.kind == "category"
    rising = sorted({*column.cuts, 0})[1:]
    for is_wrong, why in (
        (is_category != bool(names), "a category, and only a category, has categories"),
        (len({*names}) < len(names), "categories must be without duplicates"),
        ([*column.cuts] != rising, "cuts must be ascending numbers above 0"),
        (bool(rising) and column.kind != "number", "only a number has cuts"),
        ((column.mean is None) != (column.scale is None), "set both mean and scale, or neither"),
        (is_category and column.mean is not None, "a category has neither mean nor scale"),
        (column.scale is not None and column.scale <= 0, "scale must be above 0"),
        (bool(column.role and names), "a column with a role has no categories"),
    ):
        if is_wrong:
            raise DataError(f"{where}: {why}")
    return column


def digest(schema: Schema) -> str:
    """Return a digest of a schema, independent of the order of its lines."""
    columns = {name: asdict(column) for name, column in schema.items()}
    for entry in columns.values():
        for key in ("na_values", "cuts", "mean", "scale", "role"):  # keeps digests of 0.1.0
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
    schema: dict[str, Column] = field(default_factory=dict)
    # Reason for each column that is not in the schema.
    left_out: dict[str, str] = field(default_factory=dict)
    # Number of rows of the categories of a column that are left out; they may name persons.
    rare: dict[str, dict[str, int]] = field(default_factory=dict)
    # Number of values that lie far from all others, by column; it has no range for that reason.
    unbounded: dict[str, int] = field(default_factory=dict)
    # Values of a column that may mean "not measured", and are out of its range.
    coded: dict[str, set[float]] = field(default_factory=dict)


def drafted(
    tables: Mapping[str, pa.Table], min_rows: int, na_values: Sequence[str] = (), group: str = ""
) -> Draft:
    """Draft the schema of tables (by name) that have the same columns, for publication."""
    # Numbers are rounded, and at least `min_rows` rows (of different patients, if `group` is their
    # column) are behind a category or a number, because it becomes public.
    draft, unit_n = Draft(), units(tables, group)
    for name in dict.fromkeys(name for table in tables.values() for name in table.column_names):
        lacking = [key for key, table in tables.items() if name not in table.column_names]
        having = [table for key, table in tables.items() if key not in lacking]
        if lacking:
            draft.left_out[name] = f"not in {', '.join(lacking)}"
            others = {*tables[lacking[0]].column_names} - {*having[0].column_names}
            if meant := similar(name, others):
                draft.left_out[name] += f' (did you mean "{meant}"? rename it)'
        elif why := next(filter(None, (nested(table.column(name)) for table in having)), ""):
            draft.left_out[name] = f"{why}, neither numbers, dates nor texts"
        elif group and name == group:
            draft.schema[name] = Column(name, role="group")
        elif column := _drafted(name, having, unit_n, na_values, min_rows, draft):
            draft.schema[name] = column
        elif name in draft.rare:
            draft.left_out[name] = f"no value in {min_rows} rows: values of single persons"
        else:
            draft.left_out[name] = _texts_among_numbers(name, tables, na_values) or (
                "neither numbers, dates nor at most 20 categories"
            )
    read_back = _parsed(tomli_w.dumps(described(draft.schema)))
    for name, column in read_back.items():
        known = {*draft.rare.get(name, ()), *draft.coded.get(name, ())}
        for key, table in tables.items() if not column.role else ():
            errors = encoded(table, [column])[1]
            wrong = {row: each for row, each in errors.items() if each[0].plain not in known}
            if wrong:
                cells = named(wrong, Path(key))
                draft.left_out[name] = f"the draft refuses its own table: {cells[0]}"
                draft.schema.pop(name, None)
    return draft


def units(tables: Mapping[str, pa.Table], group: str) -> Ints:
    """Return the number of the group of each row of all tables, or without `group` of the row."""
    of_tables = [
        np.arange(table.num_rows)
        if (names := read_groups(table, group, Path(key), {})) is None
        else np.unique(names, return_inverse=True)[1]
        for key, table in tables.items()
    ]
    starts = np.cumsum([0, *(unit_n.max(initial=-1) + 1 for unit_n in of_tables)])
    return np.concatenate([start + n for start, n in zip(starts, of_tables, strict=False)])


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
    name: str,
    tables: Sequence[pa.Table],
    unit_n: Ints,
    na_values: Sequence[str],
    min_rows: int,
    draft: Draft,
) -> Column | None:
    """Return the first kind of column that fits all cells; None if there is none."""
    from pyarrow import types

    rows = _counts([table.column(name) for table in tables], unit_n)
    marks = tuple(sorted(rows.keys() & ({*MARKS, *na_values} - {*grammar.MISSING})))
    for text in (*grammar.MISSING, *marks):
        del rows[text]
    unit = "days" if types.is_duration(tables[0].column(name).type) else ""
    for column in (Column(name, unit=unit, na_values=marks), Column(name, "date", na_values=marks)):
        encodings = [encoded(table, [column]) for table in tables]
        if rows and not any(errors for _, errors in encodings):
            values = np.concatenate([values[:, 0] for values, _ in encodings])
            return _with_numbers(column, values, unit_n, min_rows, draft)
    numbers = sum(map(grammar.is_number, rows))
    if not 0 < len(rows) <= _MAX_CATEGORIES or numbers > _MIN_NUMBERS or numbers == len(rows):
        return None
    frequent = tuple(sorted(text for text, count in rows.items() if count >= min_rows))
    if rare := {text: rows[text] for text in sorted(rows.keys() - {*frequent})}:
        draft.rare[name] = rare
    return Column(name, "category", frequent, na_values=marks) if frequent else None


def _counts(columns: Sequence[pa.ChunkedArray], unit_n: Ints) -> Counter[str]:
    """Return the number of units, which are rows or groups of rows, with each text."""
    from pyarrow import types

    rows: Counter[str] = Counter()
    for column in columns:
        own_n, unit_n = unit_n[: len(column)], unit_n[len(column) :]
        coded = column.combine_chunks()
        coded = coded if types.is_dictionary(coded.type) else coded.dictionary_encode()
        code_n = coded.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
        width = own_n.max(initial=0) + 1
        code_u = np.unique(code_n * width + own_n) // width
        counts = np.bincount(code_u[code_u >= 0], minlength=len(coded.dictionary))
        for cell, count in zip(coded.dictionary.to_pylist(), counts.tolist(), strict=True):
            rows.update({grammar.plain(str(cell)): count} if count else {})
    return rows


def _with_numbers(
    column: Column, values: Floats, unit_n: Ints, min_rows: int, draft: Draft
) -> Column:
    """Add range, mean and scale, unless too few values differ."""
    is_known = ~np.isnan(values)
    for quality in survey_tables({0: values[is_known, None]}, [column]):  # none of no values
        is_known &= values != quality.code
        draft.coded[column.name] = {quality.code}
    values = values[is_known]
    near = publishable(values, min_rows, unit_n[is_known])
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
    """Return a range three times as wide as the middle 90 % of values, rounded outwards."""
    # Zero remains a limit. None without width.
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
