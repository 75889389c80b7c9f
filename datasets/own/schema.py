"""Column schema that institutions share before they train on tables: schema.toml.

It describes each column - a number with unit and range, a category with its values, or a date - and
has a digest by which institutions check that theirs is the same. It contains no data.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.own.cells import encoded
from datasets.preprocessing import Column
from datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "schema.toml"
_KINDS = ("number", "category", "date")
_KEYS = {field.name for field in fields(Column)} - {"name"}
_DIGITS = 16
_MAX_CATEGORIES = 20
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, AttributeError) as error:
        raise DataError(f"table: {FILE} is not a schema: {error}") from None


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    if unknown := entry.keys() - _KEYS:
        raise DataError(f"table: {FILE}: column {name}: unknown key {', '.join(sorted(unknown))}")
    column = Column(name, **{**entry, "categories": tuple(map(str, entry.get("categories", ())))})
    repeats = len(set(column.categories)) < len(column.categories)
    is_category = column.kind == "category"
    if column.kind not in _KINDS or repeats or is_category != bool(column.categories):
        raise DataError(
            f"table: {FILE}: column {name}: kind must be one of {', '.join(_KINDS)}; only a "
            "category has categories, without duplicates"
        )
    return column


def digest(schema: Schema) -> str:
    """Return a digest of a schema, independent of the order of its lines."""
    columns = {name: asdict(column) for name, column in schema.items()}
    text = json.dumps(columns, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def described(schema: Schema) -> dict[str, Any]:
    """Return the content of schema.toml, without empty fields."""
    columns = {}
    for name, column in schema.items():
        entry = {key: value for key, value in asdict(column).items() if key != "name"}
        entry["categories"] = list(column.categories)
        columns[name] = {key: value for key, value in entry.items() if value not in (None, "", [])}
    return {"columns": columns}


def drafted(table: pa.Table) -> tuple[Schema, list[str]]:
    """Draft the schema of a table, and list the columns that seem to be free text."""
    schema, free_text = {}, []
    for name in table.column_names:
        texts = {str(cell).strip() for cell in table.column(name).to_pylist() if cell is not None}
        candidates = [Column(name), Column(name, "date")]
        if len(texts) <= _MAX_CATEGORIES:
            candidates.append(Column(name, "category", tuple(sorted(texts))))
        fitting = (column for column in candidates if texts and not encoded(table, [column])[1])
        if column := next(fitting, None):
            schema[name] = column
        else:
            free_text.append(name)
    return schema, free_text
