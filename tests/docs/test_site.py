"""Site: built in strict mode, no external resources, complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from coterie.app.config.parts import PARTS
from coterie.app.config.registry import GROUPS, METHODS
from coterie.app.config.settings import options_in, tables
from coterie.app.experiments.measures import COLUMNS
from coterie.app.lab.pages import league
from coterie.app.lab.reproduction import figures
from docs import hooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SKELETON = [
    "Idea",
    "Formula",
    "Communication",
    "Costs",
    "Options",
    "Limitations",
    "Results",
    "Source",
    "Authors' code",
]


NUMBERS = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


class Assets(HTMLParser):
    """Resources that a browser loads for a page, and its visible text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(values.get("href", ""))
        self.loaded += [values[name] for name in ("src", "srcset", "data") if name in values]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.e2e
@pytest.mark.long
def test_the_site_is_whole_and_needs_no_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(METHODS) + 20
    for page in pages:
        assets = Assets(page)
        assert [url for url in assets.loaded if "//" in url] == [], page
        assert "{{" not in assets.text or page.name == "contributing.html", page
        assert "arithmatex" not in page.read_text("utf-8"), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(.?(https?:)?//|@import", sheet.read_text("utf-8")), sheet


@pytest.mark.e2e
@pytest.mark.long
def test_pages_made_from_code_say_what_it_says(site: Path) -> None:
    keys = Assets(site / "reference" / "keys.html").text
    assert "learning-rate" in keys
    assert plain(options_in("partition")["samples-per-peer"].text) in keys
    cobo = Assets(site / "methods" / "cobo.html").text
    assert "b*d*(shown + met)" in cobo  # its row of the cost table
    assert plain(options_in("cobo")["gamma"].text) in cobo  # its options
    assert "clients.rule" in Assets(site / "reference" / "clients.html").text


def plain(description: str) -> str:
    """Return the start of a description as a page shows it."""
    return hooks._sentence(description.partition("`")[0])[:30]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_page_on_the_skeleton(method: str) -> None:
    text = (DOCS / "methods" / f"{method}.md").read_text("utf-8")
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert [section.partition("\n")[0] for section in sections] == SKELETON
    assert all(section.partition("\n")[2].strip() for section in sections)
    assert "$" in sections[1]
    assert METHODS[method].group in GROUPS
    assert f"(methods/{method}.md)" in hooks.methods_table()


def test_pages_count_methods_and_papers_right() -> None:
    """Numbers in sentences, which nothing generates."""
    papers = NUMBERS[len(figures.names())]
    for page, sentence in (
        ("README.md", f"| {len(METHODS)} methods, one engine |"),
        ("README.md", f"| {papers.capitalize()} papers, claim by claim |"),
        ("README.md", _verdicts()),
        ("docs/alternatives.md", f"from {len(METHODS)} methods on one engine"),
        ("docs/alternatives.md", f"| [{len(METHODS)}](methods/index.md) |"),
        ("docs/alternatives.md", f"[{papers} papers claim by claim]"),
        ("docs/index.md", f"one of\n{len(METHODS)} methods"),
        ("docs/index.md", f"[{papers} papers](papers/index.md)"),
        ("docs/concepts.md", f"[{len(METHODS)} methods]"),
        ("docs/first-steps.md", f"every table and figure of {papers} papers"),
        ("docs/results/index.md", f"each table and figure of {papers} papers"),
    ):
        assert sentence in (ROOT / page).read_text("utf-8"), page


def _verdicts() -> str:
    """Return the sum of the verdicts in the table of the papers, in words."""
    table = (DOCS / "papers" / "index.md").read_text("utf-8")
    cells = re.findall(r"^\| \[.*\.md\) \| [^|]*" + 4 * r" \| (\d+)", table, re.M)
    holds, fails, is_open, unknown = (sum(map(int, column)) for column in zip(*cells, strict=True))
    return (
        f"[{holds} sentences hold here, {fails} do not, {is_open} cannot be judged, "
        f"{unknown} are undefined]"
    )


def test_a_table_lists_every_method_and_the_readme_the_versions() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    methods = (DOCS / "methods" / "index.md").read_text("utf-8")
    table = methods.partition("## By what they do")[2].partition("\n## ")[0]
    for method in METHODS:
        assert table.count(f"({method}.md)") == 1, method
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (flower,) = (each for each in project["dependencies"] if each.startswith("flwr"))
    version = re.search(r">=([\d.]+)", flower)
    assert version is not None
    line = next(line for line in readme.splitlines() if line.startswith("Linux"))
    assert f"[Flower](https://flower.ai) {version[1]}" in line
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in line
    assert line.endswith(project["license"])


def test_every_key_is_on_the_page_of_keys() -> None:
    page = hooks.keys_page()
    for table in ("", *tables()):
        for key in options_in(table):
            name = f"{table}.{key}" if table else key
            rows = re.findall(rf"^\| `{name}` \|.*?\|.*?\|.*\|$", page, re.MULTILINE)
            is_both = table in {*PARTS["method"].built_in} & {*PARTS["model"].built_in}
            assert len(rows) == 1 + is_both, name
    headings = re.findall(r"^## (.+)", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z]+", "-", heading.lower()) for heading in headings}
    by_task = page.partition("| task | keys |")[2].partition("\n\n")[0]
    assert {f"#{anchor}" for anchor in anchors} - set(re.findall(r"\((#.*?)\)", by_task)) <= {
        "#topology", "#plugins",
    }  # fmt: skip


def test_every_part_of_a_report_has_its_readers() -> None:
    templates = (ROOT / "app/report/templates").glob("*.j2")
    titles = set(re.findall("<h2>([^{<]+)</h2>", "".join(path.read_text() for path in templates)))
    named = re.findall(r"^\| (.+?) \|", (DOCS / "reports.md").read_text("utf-8"), re.MULTILINE)
    assert titles - {"For each institution"} <= set(named)


def test_each_table_of_methods_has_every_method_once() -> None:
    tables_of = {hooks.costs_table: "| {0} |", hooks.sources_table: "| {0} |"}
    tables_of[hooks.methods_table] = "(methods/{0}.md)"
    for table, cell in tables_of.items():
        lines = table().splitlines()[2:]
        assert len(lines) == len(METHODS)
        for name in METHODS:
            assert sum(cell.format(name) in line for line in lines) == 1
    listed = {path.stem for path in (DOCS / "methods").glob("*.md")} - {"index", "checked"}
    assert listed == METHODS.keys()


def test_links_lead_to_pages_or_lose_their_target() -> None:
    linked = hooks.relinked
    assert linked("[a](../docker/README.md#x)", "docs", "") == "[a](consortium/docker.md#x)"
    assert linked("[a](../docs/faq.md)", "docker", "consortium") == "[a](../faq.md)"
    assert linked("[a](../../clients/rule.py)", "docs/methods", "methods") == "a"
    assert linked("[a](gone.md)", "docs", "") == "[a](gone.md)"
    assert linked("[a](https://flower.ai)", "docs", "") == "[a](https://flower.ai)"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of a league with one problem, which has not been measured."""
    monkeypatch.setattr(league, "PUBLISHED", tmp_path)
    (tmp_path / "tiny.toml").write_text('title = "Tiny"\nabout = "small"\nseeds = 3\n')
    hooks._league.cache_clear()
    yield tmp_path
    hooks._league.cache_clear()


def test_pages_without_measured_cells_say_so(published: Path) -> None:
    assert "No cell has been measured yet." in hooks.league_tables()
    assert hooks.league_leaders() == hooks.league_gains() == "No problem has been measured yet."
    assert hooks.league_rows("cobo") == hooks.league_figure("cobo") == ""


def test_pages_have_the_standings_of_the_league(published: Path) -> None:
    means = {"cobo": 0.9, "local": 0.5, "oracle": 0.95, "knn-per": 0.6, "d-psgd": 0.4, "a:<B>": 0.3}
    slopes = dict(zip(means, (0.0, 0.004, 0.002, 0.003, 0.005, 0.007), strict=True))
    cells: league.Lines = {}
    for method, mean in means.items():
        slope, curve = slopes[method], [[0, 10, 20], [0.1, mean, mean]]
        by_seed = [[mean + slope * k - 0.01, mean + slope * k + 0.01] for k in (-1, 0, 1)]
        cells[method, "accuracy"] = league.Line(values=by_seed)
        cells[method, "course"] = league.Line(values=[curve] * 3)
    cells["knn-per", "private"] = league.Line(values=[], refused="memory")
    league.write("tiny", cells, published)
    table = hooks.league_tables()
    rows = dict(re.findall(r'<tr data-method="([^"]*)"(.*?)</tr>', table))
    assert [*rows] == ["oracle", "cobo", "knn-per", "local", "d-psgd", "a:&lt;B&gt;"]
    assert [method for method, row in rows.items() if " data-leads" in row] == ["cobo"]
    assert [method for method, row in rows.items() if " data-exposes" in row] == [
        "knn-per", "a:&lt;B&gt;"
    ]  # fmt: skip
    assert 'href="../methods/cobo.html">cobo</a>' in rows["cobo"]
    assert "oracle</a> *" in rows["oracle"]
    assert 'data-group="Recipes"' in rows["d-psgd"]
    assert "<b>90.00 ± 0.00</b>" in rows["cobo"]
    leaders = hooks.league_leaders().splitlines()[-1]
    assert leaders == "| [Tiny](results/league.md#tiny) | cobo | cobo |  |  | cobo 10 B |"
    row = r'<tr data-method="([^"]*)".*?</td><td[^>]*>([-+.\d]*)<'
    assert re.findall(row, hooks.league_gains()) == [
        ("oracle", "+45.00"), ("cobo", "+40.00"), ("knn-per", "+10.00"), ("local", ""),
        ("d-psgd", "-10.00"), ("a:&lt;B&gt;", "-20.00"),
    ]  # fmt: skip
    assert "<b>+40.00</b>" in hooks.league_gains()
    figure = hooks.league_figure("cobo")
    assert "from +40.0 (Tiny) to +40.0 (Tiny)" in figure
    assert (figure.count('class="own"'), figure.count('class="other"')) == (1, 3)
    assert hooks.league_figure("local") == hooks.league_figure("wga") == ""
    assert "| **90.00 ± 0.00** | **+40.00 ± 0.40** |" in hooks.league_rows("cobo")


def test_of_many_leading_methods_the_best_means_are_named(published: Path) -> None:
    names = ("local", "fedavg", "cobo", "wga", "dpfl", "ditto", "apfl", "fedrep", "pens")
    noise = (-0.05, 0.0, 0.05)
    cells: league.Lines = {
        (name, "accuracy"): league.Line(values=[[0.8 + k / 1e3 + x] for x in np.roll(noise, k)])
        for k, name in enumerate(names)
    }
    cells["sgp", "accuracy"] = league.Line(values=[[0.1 + x] for x in noise])
    league.write("tiny", cells, published)
    leaders = hooks.league_leaders().splitlines()[-1]
    best = "pens, fedrep, apfl, ditto, dpfl, wga, and 3 more, `local` among them"
    assert leaders.split(" | ")[1] == best


def test_quoted_gains_are_those_of_the_league() -> None:
    quoted = 0
    pages = DOCS / "which-method.md", ROOT / "README.md"
    for line in "\n".join(page.read_text("utf-8") for page in pages).splitlines():
        gains = re.findall(r"\((?:docs/)?methods/([\w-]+)\.md\) ([-+]\d+\.\d)", line)
        problem = re.search(r"league\.md#([\w-]+)", line)
        if gains and problem:
            keys = league.problem(problem[1], league.PUBLISHED).keys
            table = league.table(league.read(problem[1], league.PUBLISHED), keys)
            (gain,) = (column for column in league.COLUMNS if column.key == "gain")
            entries = table.entries(gain)
            leading = {method for method, entry in entries.items() if entry.leads}
            assert not leading or {method for method, _ in gains} <= leading, problem[1]
            measured = {method: f"{100 * (entries[method].value or 0):+.1f}" for method, _ in gains}
            assert dict(gains) == measured, problem[1]
            quoted += len(gains)
    assert quoted


def test_the_page_of_measures_defines_every_column() -> None:
    rows = [line.split(" | ") for line in hooks.measures_table().splitlines()[2:]]
    assert [row[1].strip("`") for row in rows] == [column.key for column in COLUMNS]
    tested = {row[1].strip("`"): row[4].strip(" |") for row in rows}
    assert tested["harmed"] == tested["rmse"] == "per peer"
    assert (tested["worst"], tested["bytes"]) == ("per run", "")
