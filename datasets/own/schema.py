"""What institutions agree on before they learn from tables: schema.toml.

It says of each column what it is - a number with its unit and range, a category with its values, a
date - and has a digest by which institutions see that theirs is the same file. It holds no data.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.datasets.own.cells import encoded
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "schema.toml"
_KINDS = ("number", "category", "date")
_KEYS = {field.name for field in fields(Column)} - {"name"}
_DIGITS = 16
_MOST_CATEGORIES = 20
Schema = Mapping[str, Column]
"""Name -> column, the label among them."""


def read_schema(folder: Path) -> Schema:
    """The schema.toml in a peer's folder, or in the one above.

    Raises
    ------
    DataError
        There is none, or it is wrong.
    """
    path = next((p for p in (folder / FILE, folder.parent / FILE) if p.is_file()), None)
    if path is None:
        raise DataError(f"table: table.schema is set, but there is no {FILE} in data-dir")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: _column(name, entry) for name, entry in found["columns"].items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, AttributeError) as error:
        raise DataError(f"table: {FILE} is not a schema: {error}") from None


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    if strange := entry.keys() - _KEYS:
        raise DataError(f"table: {FILE}: column {name}: unknown key {', '.join(sorted(strange))}")
    column = Column(name, **{**entry, "categories": tuple(map(str, entry.get("categories", ())))})
    twice = len(set(column.categories)) < len(column.categories)
    if column.kind not in _KINDS or twice or (column.kind == "category") != bool(column.categories):
        raise DataError(
            f"table: {FILE}: column {name}: kind must be one of {', '.join(_KINDS)}; a category, "
            "and nothing else, lists its categories, each once"
        )
    return column


def digest(schema: Schema) -> str:
    """What two institutions compare: equal if their schemas are, whatever the order of lines."""
    columns = {name: asdict(column) for name, column in schema.items()}
    text = json.dumps(columns, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def described(schema: Schema) -> dict[str, Any]:
    """The content of schema.toml; what is not known is left out."""
    columns = {}
    for name, column in schema.items():
        entry = {key: value for key, value in asdict(column).items() if key != "name"}
        entry["categories"] = list(column.categories)
        columns[name] = {key: value for key, value in entry.items() if value not in (None, "", [])}
    return {"columns": columns}


def drafted(table: pa.Table) -> tuple[Schema, list[str]]:
    """What the columns of a table seem to be, and those that seem to be free text."""
    schema, left_out = {}, []
    for name in table.column_names:
        texts = {str(cell).strip() for cell in table.column(name).to_pylist() if cell is not None}
        tries = [Column(name), Column(name, "date")]
        if len(texts) <= _MOST_CATEGORIES:
            tries.append(Column(name, "category", tuple(sorted(texts))))
        fits = (column for column in tries if texts and not encoded(table, [column])[1])
        if found := next(fits, None):
            schema[name] = found
        else:
            left_out.append(name)
    return schema, left_out
