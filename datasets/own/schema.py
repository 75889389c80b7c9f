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
from typing import Any

from datasets.preprocessing import Column
from datasets.problem import DataError

FILE = "schema.toml"
_KINDS = ("number", "category", "date")
_KEYS = {field.name for field in fields(Column)} - {"name"}
_DIGITS = 16
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
