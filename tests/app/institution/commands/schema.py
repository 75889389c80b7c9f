"""Schema of `coterie status --json`, as docs/operations.md has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from coterie.app.config.root import ROOT

_TYPES = {
    bool: "boolean", int: "number", float: "number", str: "string", type(None): "null",
    dict: "object", list: "list of",
}  # fmt: skip
_ROW = re.compile(r"^\| (?:([a-z, ]+): )?((?:`[\w.]+`(?:, )?)+) \| ([a-z, ]+) \|", re.MULTILINE)


def documented(kind: str) -> dict[str, set[str]]:
    """Field of a kind, as a path -> names of its types."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition("`coterie status`, by `kind`:")[2].partition("The others:")[0]
    return {
        path: set(types.split(", "))
        for kinds, paths, types in _ROW.findall(section)
        if not kinds or kind in kinds.split(", ")
        for path in re.findall(r"`([\w.]+)`", paths)
    }


def check(document: dict[str, Any]) -> set[str]:
    """Assert that a document has the fields and types of the schema; return its paths."""
    schema, paths = documented(document["kind"]), set[str]()
    assert schema, "the page has the schema of this kind"
    for path, value in fields(document):
        leaf_of_list = path not in schema and path.rpartition(".")[0] in schema
        if leaf_of_list:  # fields of short objects are in the text of their row
            continue
        assert path in schema, path
        allowed = {"list of" if each.startswith("list of") else each for each in schema[path]}
        assert _TYPES[type(value)] in allowed, (path, value)
        paths.add(path)
    for path, types in schema.items():
        parent = path.rpartition(".")[0]
        if "absent" not in types and (not parent or (parent in paths and filled(document, parent))):
            assert path in paths, path
    return paths


def filled(document: dict[str, Any], path: str) -> bool:
    """Return whether there is an object at a path."""
    return any(of == path and isinstance(value, dict) for of, value in fields(document)) or any(
        of == path and isinstance(value, list) and value for of, value in fields(document)
    )


def fields(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each field; those of all objects of a list have one path."""
    for key, of in value.items():
        yield prefix + key, of
        for each in of if isinstance(of, list) else [of]:
            if isinstance(each, dict):
                yield from fields(each, f"{prefix}{key}.")
