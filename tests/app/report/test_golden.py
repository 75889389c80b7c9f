"""The words of the pages of a run and of a comparison, as reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.report.golden_pages import FOLDER, PAGES, text_of


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_was_reviewed(tmp_path: Path, name: str) -> None:
    kept = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert text_of(PAGES[name](tmp_path)) == kept, (
        "if the new words are meant, write them with python -m tests.app.report.golden_pages, "
        "and review the difference"
    )
