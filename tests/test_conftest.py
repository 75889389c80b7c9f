"""Which tests run, and on which worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ByFile, spread


@given(st.integers(1, 50), st.integers(1, 200))
def test_cases_are_spread_evenly(count: int, cases: int) -> None:
    """No gap is above three times the mean (three-gap theorem), but for rounding."""
    kept = sorted(spread(count, cases))
    assert len(kept) == min(count, cases)
    assert kept[0] == 0
    assert kept[-1] < cases
    gaps = [b - a for a, b in zip(kept, [*kept[1:], cases], strict=True)]
    assert max(gaps) <= max(1, 3 * cases / count) + 1


def test_a_file_is_a_worker_s_and_a_page_of_its_own(pytestconfig: pytest.Config) -> None:
    scheduler = ByFile.__new__(ByFile)
    split = scheduler._split_scope
    assert split("tests/a/test_b.py::test_c[1]") == split("tests/a/test_b.py::Group::test_d")
    pages = {
        split(f"tests/docs/test_commands.py::test_the_blocks_of_a_page_run[{n}]") for n in "ab"
    }
    assert len(pages) == 2
