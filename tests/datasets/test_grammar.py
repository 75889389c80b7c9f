"""The grammar of cells: numbers, dates, classes and the remedies for other texts."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets import grammar


@given(st.floats(allow_nan=False), st.integers(), st.sampled_from(["", "+"]))
def test_numbers_that_python_writes_come_back(value: float, whole: int, sign: str) -> None:
    assert grammar.number(repr(value)) == value
    assert grammar.number(f"{sign * (whole >= 0)}{whole}") == float(whole)


@given(st.text("0123456789+-.eExX_, ½１٣'aAfF\u00a0", max_size=8))
def test_a_number_is_ascii_without_separators(text: str) -> None:
    if grammar.is_number(text):
        assert math.isfinite(grammar.number(text)) or "e" in text.lower()
        assert re.fullmatch(r"[0-9.eE+-]+", text)
        assert float(text) == grammar.number(text)
    else:
        with pytest.raises(ValueError, match="is not a number"):
            grammar.number(text)


@given(st.dates(), st.sampled_from(["", "T10:30", " 10:30:59.123", "T10:30:00Z", " 00:00+01:00"]))
def test_a_date_is_its_day_whatever_its_time(day: date, time: str) -> None:
    assert date(1970, 1, 1) + timedelta(grammar.date(f"{day}{time}")) == day


@pytest.mark.parametrize(
    "text", ["2024-01-155", "2024-13-01", "2024-02-30", "2024-01-15x", "24-1-5", "2024-01-15T25:00"]
)
def test_no_date_is_cut_to_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not a date"):
        grammar.date(text)


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=5, unique_by=grammar.plain))
def test_a_class_is_its_own_name_first(names: list[str]) -> None:
    code = grammar.codes(names)
    assert [code(grammar.plain(name)) for name in names] == list(range(len(names)))


@pytest.mark.parametrize(
    ("names", "cells"),
    [
        (["0", "1"], ["0.0", "1.", "FALSE", "true", "1.00"]),
        (["no", "yes"], ["no", "yes"]),
        (["False", "True"], ["false", "TRUE", "0", "1.0"]),
        (["1.0", "1"], ["1.0", "1"]),
    ],
)
def test_spellings_of_one_value_are_one_class(names: list[str], cells: list[str]) -> None:
    code = grammar.codes(names)
    ones = {"1", "1.", "1.0", "1.00", "true", "TRUE", "yes"}
    if names != ["1.0", "1"]:
        assert [code(cell) for cell in cells] == [int(cell in ones) for cell in cells]
    else:
        assert [code(cell) for cell in cells] == [0, 1]
    for other in ("2", "maybe", "10", "01"):
        with pytest.raises(ValueError, match="is not a category"):
            code(other)


def test_composed_and_decomposed_are_one_text() -> None:
    assert grammar.plain(" gro\u0308ße\u00a0") == grammar.plain("\ufeffgröße\u200b") == "größe"
