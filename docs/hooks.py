"""MkDocs hooks: generated pages, tables of options and costs, formulas, links.

- `reference/keys.md` is generated from the option dataclasses, the API pages from
  the modules of each package. docker/README.md, CONTRIBUTING.md and CHANGELOG.md become
  pages, too.
- Tables of parts (`{{ attacks }}`, `{{ topologies }}`) come from their rows, `{{ catalogue }}` from
  the sets of `coterie data`, those of the league (`{{ league }}` and others) from league/.
- The pages of the methods are listed by situation in the navigation and on which-method.md; their
  costs and sources are collected on methods/index.md. On a method's page, `{{ options }}` is
  replaced by its part of the key reference, and its rows of the league head its results.
- Formulas become MathML, which browsers render without a script.
- A link to a file of the repository that is not a page becomes plain text.

Build with `python -m mkdocs` in the repository root, from which the packages are imported.
"""

from __future__ import annotations

import html
import math
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from coterie.app.config import schema
from coterie.app.config.parts import PARTS, Row
from coterie.app.config.recipes import recipes
from coterie.app.config.registry import GROUPS, METHODS
from coterie.app.config.settings import options_in, tables
from coterie.app.experiments.measures import COLUMNS, Column
from coterie.app.experiments.table import Entry, Table
from coterie.app.experiments.table import Row as TableRow
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.lab.pages import league
from coterie.clients.attack import AttackKind
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.datasets.table import Dataset

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "docker/README.md": "consortium/docker.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files outside docs/ -> their pages."""

API = {
    "strategies": ("*.py", "relay/*.py", "flower/*.py"),
    "clients": ("*.py", "models/options.py", "engine/*.py", "parts/*.py"),
    "datasets": ("*.py", "partition/*.py", "own/*.py"),
    "coterie": ("api.py", "results.py", "ranges.py", "testing.py"),
    "app": ("config/*.py", "wire/*.py", "institution/security/*.py", "node/*.py", "runs/*.py"),
}
"""Package -> patterns of the modules on its page."""

_LEAGUE = {column.key: column for column in league.COLUMNS}
"""Columns of the league by key."""
_LEADERS = 6
"""Number of leading methods that a cell names."""

_SECTIONS: Mapping[str, Kind] = {
    "Methods": "method",
    "Data sets": "dataset",
    "Models": "model",
}
"""Heading of keys.md -> kind of part with a table of options for each name."""
_WORLD: tuple[tuple[str, str, Kind | None, str], ...] = (
    ("Schedule", "schedule", "schedule", "Sample clients, let peers leave and return"),
    ("Virtual clock", "clock", None, "Give peers different speeds"),
    ("Attack", "attack", "attack", "Let peers attack"),
    ("Defence", "defence", "defence", "Aggregate robustly"),
    ("Differential privacy", "privacy", None, "Add noise, with a budget"),
    ("Engine", "engine", None, "Choose how models are computed"),
    ("Letters", "letters", None, "Send compressed differences of models"),
)
"""Heading of keys.md, table, kind of part whose rows are listed below the table, and task."""
_TASKS: Mapping[str, str] = {
    "Choose method, data and network": "method recipe dataset model peer-models peers seed "
    "split-seed",
    "Train": "num-server-rounds batch-size local-steps local-epochs optimizer learning-rate "
    "learning-rate-schedule learning-rate-decay learning-rate-decay-every warm-up-rounds momentum "
    "weight-decay weight-decay-on gradient-clip reset-optimizer augment class-weights start-from",
    "Decide who may exchange with whom": "topology topology-degree topology-file mixing withhold "
    "late-peers",
    "Evaluate, and keep the best model": "evaluate-every evaluate-peers keep-models patience "
    "clearance",
    "Compute faster, or send less": "device dtype mixed-precision tf32 payload",
    "Find, name and continue runs": "out name title data-dir track resume run-dir",
    "Run at institutions": "sealing trust preflight round-seconds join-seconds quorum",
}
"""Heading of keys.md -> the keys without a table that this task needs."""
_TABLE = re.compile(r"\{\{ (\w+) \}\}")
_DEVIATIONS = "Deviations and choices: "
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the methods to the navigation, by situation."""
    assert config.nav is not None
    (pages,) = (entry["Methods"] for entry in config.nav if "Methods" in entry)
    for group, situation in GROUPS.items():
        names = [name for name, method in METHODS.items() if method.group == group]
        pages.append({situation: [{title(name): f"methods/{name}.md"} for name in names]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"reference/keys.md": keys_page()}
    pages |= {f"reference/{package}.md": api_page(package) for package in API}
    pages |= {page: (ROOT / source).read_text("utf-8") for source, page in OUTSIDE.items()}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables of a method's page; remove links that do not lead to pages."""
    uri = page.file.src_uri
    name = posixpath.basename(uri).removesuffix(".md")
    if uri.startswith("methods/") and name in METHODS:
        markdown = markdown.replace("{{ options }}", options_table(name))
        markdown = markdown.replace("\n## Idea\n", f"\n{league_figure(name)}## Idea\n", 1)
        markdown = markdown.replace("## Results\n\n", f"## Results\n\n{league_rows(name)}", 1)
    if uri == "methods/index.md":
        markdown = markdown.replace("{{ costs }}", costs_table())
        markdown = markdown.replace("{{ sources }}", sources_table())
    tables_of: dict[str, Callable[[], str]] = {
        plugins.GROUPS[kind].removeprefix("coterie."): partial(_choices, kind)
        for kind in PARTS
        if kind != "method"
    }
    tables_of |= {"methods": methods_table, "exposed": exposed_list, "recipes": recipes_table}
    tables_of |= {"catalogue": catalogue_table, "league": league_tables}
    tables_of |= {"league_leaders": league_leaders}
    tables_of |= {"league_gains": league_gains, "measures": measures_table}
    if uri not in OUTSIDE.values():
        markdown = _TABLE.sub(lambda match: tables_of[match[1]](), markdown)
    sources = {page: source for source, page in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(uri, f"docs/{uri}"))
    return relinked(markdown, folder, posixpath.dirname(uri))


def on_page_content(page_html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_mathml, page_html)


def keys_page() -> str:
    """Return the page of all keys with type, default and description."""
    parts = [
        "# Keys of a run",
        "A key has a default; a preset overrides defaults, and `key=value` on the command line "
        "overrides both. A preset is a TOML file: its table `[cobo]` has the keys that start with "
        "`cobo.`, such as `cobo.gamma=0.1` on the command line. This page is generated from the "
        "dataclasses that parse the keys.",
        _by_task(),
    ]
    for task, keys in _TASKS.items():
        parts += [f"## {task}", _rows("", keys.split())]
    parts += [
        "## Partition",
        "How the examples of a data set are divided among the peers: `partition.kind` and the "
        "keys of each kind.",
        _rows("partition"),
        _choices("partition"),
    ]
    parts += [
        "## Network",
        "These keys work with every network.",
        _rows("model"),
    ]
    parts += ["## Topology", _choices("topology")]
    for heading, table, kind, _ in _WORLD:
        parts += [f"## {heading}", _rows(table)]
        parts += [] if kind is None else [_choices(kind)]
    parts += [
        "## Plugins",
        "Options of methods, models, data sets and partitions of plugins are in the tables "
        "[method-options], [model-options], [dataset-options] and [partition-options]. `coterie "
        "list NAME` shows the options of an installed plugin; [Plugins](../extend.md) shows how to "
        "write one.",
    ]
    for heading, kind in _SECTIONS.items():
        parts += [f"## {heading}", _choices(kind)]
        for name in PARTS[kind].built_in:
            if name in tables():
                parts += [f"### {name}", _rows(name)]
    return "\n\n".join(parts) + "\n"


def _by_task() -> str:
    """Return the table of tasks with their keys, or a link to the section that has them."""
    rows = [
        f"| [{task}](#{_anchor(task)}) | {', '.join(f'`{key}`' for key in keys.split())} |"
        for task, keys in _TASKS.items()
    ]
    sections = {
        "Divide data among peers": ("Partition", "partition"),
        "Start from pretrained weights, freeze layers, train adapters": ("Network", "model"),
        **{task: (heading, table) for heading, table, _, task in _WORLD},
    }
    for task, (heading, table) in sections.items():
        rows.append(f"| [{task}](#{_anchor(heading)}) | `{table}.…` |")
    rows += [
        "| [Options of a method](#methods), [of a data set](#data-sets), [of a network](#models) | "
        "`cobo.…`, `table.…`, `mlp.…` |"
    ]
    return "\n".join(["| task | keys |", "|---|---|", *rows])


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z]+", "-", heading.lower())


def options_table(method: str) -> str:
    """Return the table of a method's option keys."""
    if method in tables():
        return _rows(method)
    return "None; only [the keys of all runs](../reference/keys.md)."


def costs(method: str) -> dict[str, str]:
    """Return the costs of a method from its page: column of the cost table -> cell."""
    rows = (_cells(line) for line in _section(method, "Costs").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].isalpha()}


def letters() -> dict[str, str]:
    """Return the formulas of letters with fewer bytes: name or quoted payload -> formula."""
    rows = (_cells(line) for line in _section("index", "Letters with fewer bytes").splitlines())
    return {row[0].strip("`"): row[1].strip("`") for row in rows if row and row[0][:1] == "`"}


def source(method: str) -> tuple[str, str]:
    """Return the citation of a method's page, and its deviations from the paper."""
    paragraphs = _section(method, "Source").split("\n\n")
    deviations = next((each for each in paragraphs if each.startswith(_DEVIATIONS)), "")
    text = " ".join(deviations.removeprefix(_DEVIATIONS).split())
    return " ".join(paragraphs[0].split()), text


def costs_table() -> str:
    """Return the cost table of all methods."""
    heads = list(costs("local"))
    rows = ((name, *(costs(name)[head] for head in heads)) for name in METHODS)
    return _table(("method", *heads), rows)


def sources_table() -> str:
    """Return the table of the papers of all methods."""
    heads = "method", "paper", "deviations and choices"
    return _table(heads, ((name, *source(name)) for name in METHODS))


def methods_table() -> str:
    """Return the table of all methods by situation, with links to their pages."""
    rows = []
    for group, situation in GROUPS.items():
        names = [name for name, method in METHODS.items() if method.group == group]
        for name in names:
            first = situation if name == names[0] else ""
            rows.append((first, f"[{title(name)}](methods/{name}.md)", _notes(name)))
    return _table(("situation", "method", ""), rows)


def recipes_table() -> str:
    """Return the table of the recipes: keys, paper and note of each."""
    rows = []
    for name, recipe in recipes().items():
        keys = (f"`{key} = {schema.written(value)}`" for key, value in recipe.keys.items())
        keyed = ", ".join(keys) or f"none, it is missing {recipe.missing}"
        rows.append((f"`{name}`", keyed, f"{recipe.reference}. {recipe.note}".rstrip()))
    return _table(("method", "keys", "paper, and our reading"), rows)


def exposed_list() -> str:
    """Return the methods that differential privacy does not cover, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        if method.exposes:
            reasons.setdefault(method.exposes, []).append(name)
    return "\n".join(f"- {reason}: {', '.join(names)}" for reason, names in reasons.items())


def catalogue_table() -> str:
    """Return the table of the sets of `coterie data`."""
    rows = []
    for name, entry in SETS.items():
        size = f"{entry.examples:,} rows, {entry.institutions} {entry.members}"
        files = "; ".join(f"[{file.name}]({file.url})" for file in entry.files)
        source = f"{entry.source}. {f'Download: {files}' if files else 'Included'}."
        rows.append((f"`{name}`", _sentence(entry.task), size, source, _sentence(entry.licence)))
    return _table(("name", "task", "data", "source", "licence"), rows)


def measures_table() -> str:
    """Return the table of the measures of a comparison: heading, name, definition, test."""
    rows = []
    for column in COLUMNS:
        tested = "per peer" if column.of_peers else "per run"
        rows.append(
            (
                column.title,
                f"`{column.key}`",
                column.about,
                column.better,
                tested if column.better else "",
            )
        )
    return _table(("heading", "in comparison.csv", "of a run", "better", "tested"), rows)


@lru_cache
def _league() -> dict[str, tuple[league.Problem, Table]]:
    """Return name -> problem and table of the league."""
    made = {}
    for name in league.problems(league.PUBLISHED):
        problem = league.problem(name, league.PUBLISHED)
        made[name] = problem, league.table(league.read(name, league.PUBLISHED), problem.keys)
    return made


def league_tables() -> str:
    """Return the tables of the league, a section per problem."""
    sections = []
    for name, (problem, table) in _league().items():
        about = f"{_sentence(problem.about)}. Results of {len(table.rows)} methods."
        sections.append(f"### {problem.title} {{#{name}}}\n\n{about}\n\n{_league_table(table)}")
    return "\n\n".join(sections)


def league_leaders() -> str:
    """Return the table of the methods that lead each column of each measured problem."""
    columns = [_LEAGUE[key] for key in ("accuracy", "worst", "attacked", "private")]
    lines = []
    for name, (problem, table) in _league().items():
        if not table.rows:
            continue
        cells = [_leading(table, column) for column in columns]
        costs = table.entries(_LEAGUE["bytes_to_best"])
        reached = sorted(
            (entry.value, row.name, entry.text)
            for row in table.rows
            if (entry := costs[row.method]).value is not None
            and math.isfinite(entry.value) and not row.reference
        )  # fmt: skip
        cheap = ", ".join(f"{method} {text}" for _, method, text in reached[:3])
        lines.append((f"[{problem.title}](results/league.md#{name})", *cells, cheap))
    heads = (
        "problem",
        *(column.title for column in columns),
        "fewest bytes to 90 % of the best gain",
    )
    return _table(heads, lines) if lines else "No problem has been measured yet."


def _leading(table: Table, column: Column) -> str:
    """Return the leading methods of a column, the best means first."""
    entries = table.entries(column)
    values = {row.name: entries[row.method].value for row in table.rows}
    if all(value is None for value in values.values()):
        return ""
    names = [row.name for row in table.rows if entries[row.method].leads]
    names.sort(key=lambda name: -(values[name] or 0.0))
    more = len(names) - _LEADERS
    if more < 2:
        return ", ".join(names) or "no difference"
    local = ", `local` among them" * ("local" in names[_LEADERS:])
    return f"{', '.join(names[:_LEADERS])}, and {more} more{local}"


def league_gains() -> str:
    """Return the table of the gains over Local: a row per method, a column per measured problem."""
    measured = {name: of for name, of in _league().items() if of[1].rows}
    if not measured:
        return "No problem has been measured yet."
    of: dict[str, dict[str, tuple[TableRow, Entry, bool]]] = {}
    for name, (_, table) in measured.items():
        entries, bold = table.entries(_LEAGUE["gain"]), _bold(table, _LEAGUE["gain"])
        for row in table.rows:
            of.setdefault(row.method, {})[name] = row, entries[row.method], row.method in bold

    # those of most methods; the means are over them
    common = {name for name, (_, table) in measured.items() if 2 * len(table.rows) > len(of)}

    def mean(method: str) -> float:
        values = [entry.value for name, (_, entry, _) in of[method].items() if name in common]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else 0.0

    def order(method: str) -> tuple[bool, float]:
        return not common <= of[method].keys(), -mean(method)

    body = []
    for k, method in enumerate(sorted(of, key=order)):
        row = next(iter(of[method].values()))[0]
        cells = "".join(
            _league_cell(of[method][name][1], is_bold=of[method][name][2], short=True)
            if name in of[method]
            else "<td></td>"
            for name in measured
        )
        is_whole = common <= of[method].keys() and method != "local"
        value = mean(method)
        average = f'<td data-value="{value!r}">{100 * value:+.2f}</td>' if is_whole else "<td></td>"
        leads = any(is_bold for _, _, is_bold in of[method].values())
        name = f'<td data-value="{k}">{_league_name(row)}</td>'
        body.append(f"<tr {_league_filters(row, leads=leads)}>{name}{average}{cells}</tr>")
    heads = [("mean of these", ""), *((of.title, f"#{name}") for name, (of, _) in measured.items())]
    head = "".join(
        f'<th data-better="high"><button type="button">{title}</button>'
        + (f' <a href="{target}">table</a>' if target else "")
        + "</th>"
        for title, target in heads
    )
    return _league_html(head, body)


def league_figure(method: str) -> str:
    """Return a figure of a method's gain on each problem, among all others; empty if unmeasured."""
    gains: dict[str, dict[str, float]] = {}
    for problem, table in _league().values():
        entries = table.entries(_LEAGUE["gain"])
        gains[problem.title] = {
            row.method: 100 * value
            for row in table.rows
            if (value := entries[row.method].value) is not None
            and not row.reference
            and row.method != "local"
        }
    gains = {title: of for title, of in gains.items() if method in of}
    if not gains:
        return ""
    low, high = -15.0, 17.0  # worse gains are drawn at the edge

    def at(gain: float) -> float:
        return 6 + 340 * (min(max(gain, low), high) - low) / (high - low)

    rows = []
    for k, (title, of) in enumerate(gains.items()):
        y = 34 + 42 * k
        dots = "".join(
            f'<circle cx="{at(gain):.1f}" cy="{y}" r="3" class="other"/>'
            for other, gain in of.items()
            if other != method
        )
        rows.append(
            f'<text x="0" y="{y - 13}">{html.escape(title)}</text>{dots}'
            f'<circle cx="{at(of[method]):.1f}" cy="{y}" r="5.5" class="own"/>'
            f'<text x="358" y="{y + 4}">{of[method]:+.1f}</text>'
        )
    height = 6 + 42 * len(rows)
    zero = f'<line x1="{at(0):.1f}" x2="{at(0):.1f}" y1="6" y2="{height}"/>'
    ordered = sorted((of[method], title) for title, of in gains.items())
    (low_gain, low_title), (high_gain, high_title) = ordered[0], ordered[-1]
    caption = (
        f"Gain over training alone in points of accuracy, from {low_gain:+.1f} ({low_title}) to "
        f"{high_gain:+.1f} ({high_title}). Grey: the other methods; line: no gain; beyond {low:g} "
        f"and {high:g} at the edge. [League](../results/league.md)"
    )
    drawn = (
        f'<svg class="gains" viewBox="0 0 400 {height}" role="img" aria-label="Gains of '
        f'{method} over Local">{zero}{"".join(rows)}</svg>'
    )
    return f"{drawn}\n\n{caption}\n\n"


def _league_html(head: str, body: Sequence[str]) -> str:
    """Return a table that docs/league.js filters and sorts."""
    return (
        '<div class="league"><table><thead><tr><th><button type="button">method</button></th>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _bold(table: Table, column: Column) -> set[str]:
    """Return the methods that are tied with the best of a column, but not worse than Local."""
    entries, sign = table.entries(column), 1 if column.better == "high" else -1
    local = 0.0 if column.key == "gain" else entries["local"].value if "local" in entries else None
    return {
        method
        for method, entry in entries.items()
        if entry.leads and (local is None or sign * (entry.value or 0.0) >= sign * local)
    }


def league_rows(method: str) -> str:
    """Return a method's rows of the league, for its page; empty without measured cells."""
    lines = []
    for name, (problem, table) in _league().items():
        if any(row.method == method for row in table.rows):
            entries = [table.entries(column)[method] for column in league.COLUMNS]
            cells = (f"**{entry.text}**" if entry.leads else entry.text for entry in entries)
            lines.append((f"[{problem.title}](../results/league.md#{name})", *cells))
    heads = "league", *(column.title for column in league.COLUMNS)
    return f"{_table(heads, lines)}\n\n" if lines else ""


def _league_table(table: Table) -> str:
    """Return a table of the league as HTML, the highest accuracy first."""
    columns = [c for c in league.COLUMNS if any(row.summary(c) for row in table.rows)]
    if not columns:
        return "No cell has been measured yet."
    heads = "".join(
        f'<th data-better="{column.better}"><button type="button">{column.title}</button></th>'
        for column in columns
    )
    entries, body = [(table.entries(column), _bold(table, column)) for column in columns], []
    leads, accuracy = table.bold(_LEAGUE["accuracy"]), table.entries(_LEAGUE["accuracy"])
    ordered = sorted(table.rows, key=lambda row: -(accuracy[row.method].value or -math.inf))
    for k, row in enumerate(ordered):
        cells = (_league_cell(of[row.method], is_bold=row.method in bold) for of, bold in entries)
        tuned = ", ".join(
            f"{key.rpartition('.')[2]} {value}{'†' * (key in row.choice.edges)}"
            for key, value in row.choice.settings.items()
        )
        body.append(
            f"<tr {_league_filters(row, leads=row.method in leads)}>"
            f'<td data-value="{k}">{_league_name(row)}</td>'
            f"{''.join(cells)}<td>{html.escape(tuned)}</td></tr>"
        )
    return _league_html(f"{heads}<th>tuned</th>", body)


def _league_cell(entry: Entry, *, is_bold: bool, short: bool = False) -> str:
    value = "" if entry.value is None else f' data-value="{entry.value!r}"'
    text = entry.text.partition(" ±")[0] if short else entry.text
    return f"<td{value}>{f'<b>{text}</b>' if is_bold else text}</td>"


def _league_name(row: TableRow) -> str:
    star, name = " *" * bool(row.reference), html.escape(row.name)
    if row.method in METHODS:
        return f'<a href="../methods/{row.method}.html">{name}</a>{star}'
    return f'<a href="../recipes.html">{name}</a>' if row.method in recipes() else name


def _league_filters(row: TableRow, *, leads: bool) -> str:
    """Return the attributes of a row that the filters read."""
    base = str(recipes()[row.method].keys["method"]) if row.method in recipes() else row.method
    method = METHODS.get(base)
    group = "Recipes" if base != row.method else "Plugins"
    if method is not None and method.group is not None and base == row.method:
        group = GROUPS[method.group]
    flags = {
        "leads": leads,
        "validates": method is not None and method.validates,
        "exposes": method is None or bool(method.exposes),
    }
    marks = "".join(f" data-{name}" for name, applies in flags.items() if applies)
    return f'data-method="{html.escape(row.method)}" data-group="{html.escape(group)}"{marks}'


def title(method: str) -> str:
    """Return the heading of a method's page."""
    return _page(method).partition("\n")[0].removeprefix("# ")


def _notes(name: str) -> str:
    method = METHODS[name]
    notes = [_sentence(method.summary)]
    if method.validates:
        notes.append("needs validation data")
    if method.true_clusters is True:
        notes.append("is given the true clusters, so it is not ranked")
    elif method.true_clusters:
        values = (f'`{key} = "{value}"`' for key, value in method.true_clusters.items())
        notes.append(f"is given the true clusters with {' or '.join(values)}")
    if method.exposes:
        notes.append("not covered by differential privacy")
    return "; ".join(notes)


def _page(method: str) -> str:
    return (ROOT / "docs" / "methods" / f"{method}.md").read_text("utf-8")


def _section(method: str, heading: str) -> str:
    """Return the text of a section of a method's page."""
    return _page(method).partition(f"\n## {heading}\n\n")[2].partition("\n## ")[0]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows))


def api_page(package: str) -> str:
    """Return a page that lists the modules of a package for mkdocstrings."""
    paths = [path for pattern in API[package] for path in sorted((ROOT / package).glob(pattern))]
    modules = (path for path in paths if path.name != "__init__.py")
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules)
    return "\n\n".join([f"# API: {package}", *(f"::: {name}" for name in names)]) + "\n"


def relinked(markdown: str, folder: str, here: str) -> str:
    """Rewrite the links of a Markdown file for its page of the site.

    Parameters
    ----------
    markdown : str
        Content of the file.
    folder : str
        Folder of the file in the repository, from which its links start.
    here : str
        Folder of the page in the site.
    """

    def linked(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        page = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if page:
            target = posixpath.relpath(page, here or ".")
            return f"[{match['text']}]({target}{match['anchor'] or ''})"
        return match["text"] if (ROOT / path).exists() else match[0]

    return _LINK.sub(linked, markdown)


def _rows(table: str, keys: Collection[str] = ()) -> str:
    """Return the table of the keys of a table, of all or of some."""
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    options = options_in(table)
    for key, option in ((key, options[key]) for key in keys or options):
        dotted = f"{table}.{key}" if table else key
        kind = re.sub(r'"[^"]*"', r"`\g<0>`", option.values)
        default, meaning = schema.written(option.default), _sentence(option.text)
        rows.append(f"| `{dotted}` | {kind} | `{default}` | {meaning} |")
    return "\n".join(rows)


def _choices(kind: Kind) -> str:
    """Return the table of the built-in parts of a kind."""
    part = PARTS[kind]
    rows = (f"| `{name}` | {_sentence(_summary(row))} |" for name, row in part.built_in.items())
    return "\n".join([f"| `{part.key}` | |", "|---|---|", *rows])


def _summary(row: Row) -> str:
    if isinstance(row, Dataset):
        return f"{row.summary}; needs {row.needs}"
    if isinstance(row, AttackKind) and row.strength:
        return f"{row.summary}; default strength {row.strength:g}"
    return row.summary


def _sentence(text: str) -> str:
    return (text[0].upper() + text[1:]).replace("|", "\\|")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    formula = convert(html.unescape(match[3]).strip(), display=display)
    return f'<span class="formula">{formula}</span>' if display == "block" else formula
