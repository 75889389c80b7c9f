"""Keys are explained by the docstrings and types of their dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import pytest

from coterie.app.config import schema
from coterie.app.config.explain import descriptions, values
from coterie.app.config.keys import tables
from coterie.ranges import Range


@pytest.mark.parametrize("table", tables())
def test_every_key_is_described(table: str) -> None:
    of = tables()[table]
    described = descriptions(of)
    assert {field for field, _ in schema.keys(of).values()} <= described.keys()
    for text in described.values():
        assert len(text) > 8
        assert text.split()[0] not in ("int", "float", "str", "bool"), "a type is no description"


@dataclass(frozen=True)
class Base:
    """Base.

    Attributes
    ----------
    rate_limit : float or "auto"
        Rate,
        at most once per peer.

        A second paragraph.

    Notes
    -----
    free : int
        Not an attribute.
    """

    rate_limit: Annotated[float, Range(0, below=1)] | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Options(Base):
    """Options.

    Attributes
    ----------
    first, second : {"a", "b"}
        Choices, see rate_limit and some_thing_else.
    old : described without a type,
        on two lines.
    """

    first: Literal["a", "b"] = "a"
    second: Literal["a", "b"] = "b"
    old: int = 0
    noted: Annotated[int, Range(1), "Text in the annotation."] = 1
    free: bool = False
    file: Annotated[str, Path] = ""


def test_docstrings_and_annotations_describe() -> None:
    assert descriptions(Options) == {
        "rate_limit": "Rate, at most once per peer. A second paragraph.",
        "first": "Choices, see rate-limit and some_thing_else.",
        "second": "Choices, see rate-limit and some_thing_else.",
        "old": "described without a type, on two lines.",
        "noted": "Text in the annotation.",
    }


def test_types_state_the_values() -> None:
    hints = get_type_hints(Options, include_extras=True)
    assert {name: values(kind) for name, kind in hints.items()} == {
        "rate_limit": 'number at least 0 and below 1, "auto"',
        "first": '"a", "b"',
        "second": '"a", "b"',
        "old": "integer",
        "noted": "integer at least 1",
        "free": "true or false",
        "file": "path",
    }
