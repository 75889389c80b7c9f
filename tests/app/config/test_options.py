"""Options are described where they are stated: text, type and range of a field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from coterie.app.config.settings import options_in, tables
from coterie.ranges import Range, RangeError, check, option, options_of


@pytest.mark.parametrize("table", tables())
def test_every_key_is_described(table: str) -> None:
    for each in options_in(table).values():
        assert len(each.text) > 8
        assert each.text.split()[0] not in ("int", "float", "str", "bool"), "a type is no text"


@pytest.mark.parametrize("table", ["", *tables()])
def test_a_share_and_a_probability_are_at_most_1(table: str) -> None:
    shares = ("Share", "Fraction", "Probability")
    for each in options_in(table).values():
        if each.text.startswith(shares):
            for value in (-0.01, 1.01):
                with pytest.raises(RangeError):
                    each.take(value)


@dataclass(frozen=True)
class Base:
    rate_limit: float | Literal["auto"] = option("auto", "At most once.", low=0, below=1)
    left: int = option(1, "Of the base.", low=0)


@dataclass(frozen=True)
class Options(Base):
    first: Literal["a", "b"] = option("a", "Choice, see rate_limit and some_thing_else.")
    old: int = 0
    noted: Annotated[int, Range(1)] = 1
    either: Annotated[int, Range(1)] | Literal["auto"] = "auto"
    free: bool = option(False, "Truth.", scope="relay")
    file: Annotated[str, Path] = ""
    out: str = option("", "Folder.", path=True, scope="site")
    left: int = option(2, "Of the class.", high=9)
    parts: tuple[int, ...] = ()


def test_texts_name_options_by_their_keys() -> None:
    assert {key: each.text for key, each in options_of(Options).items() if each.text} == {
        "rate-limit": "At most once.",
        "left": "Of the class.",
        "first": "Choice, see rate-limit and some_thing_else.",
        "free": "Truth.",
        "out": "Folder.",
    }


def test_types_and_ranges_state_the_values() -> None:
    assert {key: each.values for key, each in options_of(Options).items()} == {
        "rate-limit": 'number at least 0 and below 1, "auto"',
        "left": "integer at most 9",
        "first": '"a", "b"',
        "old": "integer",
        "noted": "integer at least 1",
        "either": 'integer at least 1, "auto"',
        "free": "true or false",
        "file": "path",
        "out": "path",
    }
    assert {key for key, each in options_of(Options).items() if each.is_path} == {"file", "out"}
    assert options_of(Options)["free"].scope == "relay"


@pytest.mark.parametrize("wrong", [{"default": -1}, {"default": 3, "grid": (1, 2, 9)}])
def test_a_default_and_a_grid_are_in_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(RangeError, match=r"must be 0 to 8: option\(.*'Steps of a round.'"):
        option(text="Steps of a round.", low=0, high=8, **wrong)


def test_numbers_made_by_hand_are_checked() -> None:
    check(Options())
    with pytest.raises(RangeError, match=r"^noted = 0: must be at least 1$"):
        check(Options(noted=0))
