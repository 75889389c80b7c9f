"""Descriptions of configuration keys: meaning, type and range, from the option dataclasses."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin

from coterie import ranges
from coterie.app.config import schema
from coterie.app.config.keys import TopLevel
from coterie.clients.training import Training

_ATTRIBUTES = re.compile(r"^Attributes\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", re.M | re.S)
_ATTRIBUTE = re.compile(r"^(\w[\w, ]*) : (.*)\n?((?:^(?: .*)?\n?)*)", re.M)
_TYPE = re.compile(r'((bool|int|float|str|None|[A-Z]\w+|"[\w-]+"|\{.*\})(, | or | \| |$))+')
_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text"}


def descriptions(table: type) -> dict[str, str]:
    """Return the description of each option: from the docstrings of the dataclass and its bases.

    Options without one are left out, unless text in their annotation describes them.

    Returns
    -------
    dict of str to str
        Field -> description; it names other options by their keys.
    """
    described: dict[str, str] = {}
    bases = [Training, TopLevel] if table is TopLevel else reversed(table.__mro__)
    for cls in bases:
        for names, kind, lines in _attributes(vars(cls).get("__doc__") or ""):
            text = lines if _TYPE.fullmatch(kind) else f"{kind} {lines}"
            described |= dict.fromkeys(names, " ".join(text.split()))
    keys = schema.keys(table)
    key_of = {field: key for key, (field, _) in keys.items()}
    notes = schema.notes(table)
    described |= {field: notes[key] for key, (field, _) in keys.items() if notes[key]}
    return {
        field.name: re.sub(
            r"\w+_\w+", lambda word: key_of.get(word[0], word[0]), described[field.name]
        )
        for field in fields(table)
        if described.get(field.name)
    }


def _attributes(doc: str) -> list[tuple[list[str], str, str]]:
    """Return names, type and description of each entry of a docstring's "Attributes"."""
    return [
        (names.split(", "), kind.strip(), lines)
        for section in _ATTRIBUTES.findall(inspect.cleandoc(doc) + "\n")
        for names, kind, lines in _ATTRIBUTE.findall(section)
    ]


def values(annotation: Any) -> str:
    """Return the values that an option allows, as in "integer at least 1"."""
    if isinstance(annotation, str):
        return f'"{annotation}"'
    if annotation in _NAMES:
        return _NAMES[annotation]
    if get_origin(annotation) is Annotated:
        if schema.is_path(annotation):
            return "path"
        bounds = [str(note) for note in annotation.__metadata__ if isinstance(note, ranges.Range)]
        return " ".join([values(annotation.__origin__), *bounds])
    return ", ".join(dict.fromkeys(map(values, get_args(annotation))))
