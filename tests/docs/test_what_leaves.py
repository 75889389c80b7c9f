"""Page for ethics boards: measure again what leaves an institution, byte by byte."""

from __future__ import annotations

import pytest

from coterie.strategies.flower.records import encode_fault, encode_response
from tests.docs.leaving import FIELDS, PAGE, TABLES, run, sizes_of, written

SLOW = ("methods", "disclosure")
"""Tables that take runs of all methods, or under all policies."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in SLOW else ()) for n in TABLES]
)
def test_a_table_is_what_leaves_now(name: str) -> None:
    """Compare a table of the page; to update it, run python -m tests.docs.leaving."""
    assert TABLES[name]() == written(PAGE.read_text("utf-8"), name)


def test_an_answer_holds_no_field_that_the_page_does_not_name() -> None:
    for request, response in run("cobo").exchanges:
        record = encode_response(response, request)
        assert sizes_of(record).keys() == FIELDS.keys()
        letters = {f"letter-{k}" for k in range(len(response.letters))}
        assert set(record) == {"response", "metrics", *letters}
    assert set(encode_fault("data")) == {"fault"}
