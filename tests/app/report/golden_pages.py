"""Two pages as text; `python -m tests.app.report.golden_pages` writes the reviewed texts again."""

from __future__ import annotations

import html
import json
import re
import tempfile
from pathlib import Path

from coterie.app.report import comparison_page, run_page
from coterie.app.report import html as pages
from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Page
from coterie.app.runs.rundir import Run
from tests.app.fake_run import Story, write_run
from tests.app.report.test_decisions import rows

FOLDER = Path(__file__).with_name("golden")
_TIME = re.compile(r"\d+ \w+ \d{4}, \d\d:\d\d")
_VERSIONS = re.compile(r"python [\d.]+, torch .*")
_BREAK = re.compile(r"</?(?:p|tr|dl|h\d|li|ul|div|header|section)\b[^>]*>")
_CELL = re.compile(r"</(?:td|th|dt|dd)>(?=\s*<)")


def of_run(folder: Path) -> Page:
    """Return the page of a run with clusters."""
    return run_page.page(Run.read(write_run(folder / "run", Story(rounds=5))), ["curves.png"])


def of_comparison(folder: Path) -> Page:
    """Return the page of a comparison of four hospitals, two of which cannot be judged."""
    return comparison_page.page(Comparison(rows(folder / "comparison"), "hospitals"))


PAGES = {"run": of_run, "comparison": of_comparison}


def text_of(page: Page) -> str:
    """Return the words of a page, a line per element, and the shape of the data of its figures."""
    content = page.content()
    body = pages.render(page.template, **content).partition("<main>")[2].partition("<script")[0]
    parts = _BREAK.split(_CELL.sub(" | ", body))
    lines = [" ".join(re.sub("<[^>]*>", " ", part).split()) for part in parts]
    shape = json.dumps(_shape(content["data"]), indent=1)
    text = html.unescape("\n".join([*filter(None, lines), shape, ""]))
    return _VERSIONS.sub("VERSIONS", _TIME.sub("TIME", text))


def _shape(value: object) -> object:
    """Return the keys and lengths of nested data."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return f"{len(value)} x {_shape(value[0])}" if value else "empty"
    return type(value).__name__


if __name__ == "__main__":
    for name, make in PAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.txt").write_text(text_of(make(Path(folder))), encoding="utf-8")
