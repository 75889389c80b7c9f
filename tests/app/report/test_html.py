"""Pages are rendered from templates, a style sheet and JavaScript modules."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from coterie.app import dashboard
from coterie.app.report import html
from tests.app.report.pages import Page

LIVE = Path(dashboard.__file__).parent / "static"
ENTRIES = ("run/main.js", "comparison/main.js", LIVE / "run.js", LIVE / "comparison.js")
DECLARED = re.compile(r"^(?:async function|function|class|const|let) (\w+)", re.MULTILINE)


def header(path: Path) -> str:
    """Return the first line of a module, a comment that identifies it."""
    return path.read_text(encoding="utf-8").partition("\n")[0]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_script_has_every_module_once_and_after_what_it_imports(entry: str | Path) -> None:
    script = html.script(entry)
    every = (*html.STATIC.rglob("*.js"), *LIVE.glob("*.js"))
    modules = [path for path in every if header(path) in script]
    assert {path.name for path in modules} >= {
        "page.js",
        "curves.js",
        "player.js",
        Path(entry).name,
    }
    for path in modules:
        assert script.count(header(path)) == 1
        for imported in re.findall(r' from "([^"]+)";', path.read_text(encoding="utf-8")):
            assert script.index(header(path.parent / imported)) < script.index(header(path))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_script_is_whole_and_stays_inside_its_element(entry: str | Path) -> None:
    script = html.script(entry)
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    assert "<!--" not in script


@pytest.mark.parametrize("entry", ENTRIES)
def test_joined_modules_do_not_declare_a_name_twice(entry: str | Path) -> None:
    names = Counter(DECLARED.findall(html.script(entry)))
    assert names["make"] == 1
    assert [name for name, count in names.items() if count > 1] == []


def test_text_is_escaped_and_data_stays_json(tmp_path: Path) -> None:
    evil = "</script><script>alert('&\"')</script>"
    text = html.render(
        "page.html.j2", title=evil, facts=[evil], notice=evil, outcome=evil,
        data={evil: [evil, 1]}, sections=[],
    )  # fmt: skip
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    page = Page(path)
    assert page.data == {evil: [evil, 1]}
    assert page.tags.count("script") == 2
    assert page.text.count(evil) == 5, "title twice, fact, notice and outcome"


def test_what_a_template_lacks_is_an_error_and_so_is_a_number_that_json_lacks() -> None:
    with pytest.raises(UndefinedError, match="outcome"):
        html.render("page.html.j2", title="", facts=[], notice="", data={})
    with pytest.raises(ValueError, match="JSON"):
        html.render(
            "page.html.j2", title="", facts=[], notice="", outcome="", sections=[],
            data={"a": float("nan")},
        )  # fmt: skip


def test_units_are_smaller_than_their_numbers() -> None:
    assert html.small_units("1 min 13 s") == "1<small>&nbsp;min</small> 13<small>&nbsp;s</small>"
    assert html.small_units("± 1.6 <points>") == "± 1.6 &lt;points&gt;"
