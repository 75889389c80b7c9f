"""The tables of a comparison's page: the results and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any

from app.config import schema
from app.config.keys import flatten
from app.config.registry import METHODS
from app.report import compare
from app.report import report_words as words
from app.report.compare import Row
from app.report.measures import Column
from app.runs import units

_TABLE = Template("""<section>
<div class="head"><h2>Results</h2></div>
<p class="about">$about</p>
<div class="scroll all" tabindex="0"><table id="results"><thead><tr class="over-head">$groups</tr>
<tr>$heads</tr></thead><tbody>$rows</tbody></table></div>
</section>""")

_SETTINGS = Template("""<section>
<div class="head"><h2>Settings</h2></div>
<p class="about">$about</p>
<div class="scroll cost"><table><thead><tr><th scope="col">Method</th>
<th scope="col" class="text">Own settings</th></tr></thead><tbody>$rows</tbody></table></div>
<h3 class="common">What all have in common</h3>
$common
</section>""")


def results(rows: Sequence[Row], *, several: bool) -> str:
    """Render the comparison as a table that sorts; `several` seeds have deviations."""
    columns = compare.shown(rows)
    best = {column.key: compare.best(rows, column) for column in columns}
    groups: list[list[Any]] = [["", 1]]
    starts = set()
    for column in columns:
        if groups[-1][0] == column.group:
            groups[-1][1] += 1
        else:
            groups.append([column.group, 1])
            starts.add(column.key)
    about = "Mean ± standard deviation over seeds; " if several else ""
    about += "the best of a column is bold. Click a heading to sort, a row to follow that method."
    return _TABLE.substitute(
        about=about[0].upper() + about[1:],
        groups="".join(
            f'<th scope="colgroup" colspan="{span}" class="start">{escape(name)}</th>'
            for name, span in groups
        ),
        heads='<th scope="col"><button type="button">method</button></th>'
        + "".join(
            f'<th scope="col" data-better="{column.better}" title="{escape(column.about)}"'
            f"{_class('start' if column.key in starts else '')}>"
            f'<button type="button">{escape(column.title)}</button></th>'
            for column in columns
        ),
        rows="".join(
            f'<tr data-method="{m}"><td><span class="key"></span>{escape(row.method)}</td>'
            + "".join(
                _cell(row, column, best[column.key], column.key in starts) for column in columns
            )
            + "</tr>"
            for m, row in enumerate(rows)
        ),
    )


def _cell(row: Row, column: Column, best: frozenset[str], start: bool) -> str:
    found = row.summary(column)
    mean, _, deviation = compare.cell(row, column).partition(" ± ")
    spread = f"<small>± {escape(deviation)}</small>" if deviation else ""
    names = " ".join(name for name, has in (("start", start), ("best", row.method in best)) if has)
    value = "" if found is None else f' data-value="{found[0]!r}"'
    text = units.NONE if found is None else escape(mean)
    return f"<td{value}{_class(names)}><span>{text}</span>{spread}</td>"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def settings(rows: Sequence[Row]) -> str:
    """Render what the methods have in common, and what each has of its own."""
    flat = [flatten(dict(run.config)) for row in rows for run in row.runs]
    common = {
        key: value
        for key, value in flat[0].items()
        if all(key in other and other[key] == value for other in flat)
        and key not in ("method", "seed")
        and key.partition(".")[0] not in METHODS
    }
    body = []
    for row in rows:
        own = {
            key: value
            for key, value in flatten(dict(row.runs[0].config)).items()
            if key not in common and key not in ("method", "seed")
        }
        cells = "".join(
            f"<li{_class('tuned' if key in row.settings else '')}><code>{escape(key)} = "
            f"{escape(schema.written(value))}</code></li>"
            for key, value in own.items()
        )
        body.append(
            f'<tr><td>{escape(row.method)}</td><td class="text">'
            f'<ul class="own">{cells or units.NONE}</ul></td></tr>'
        )
    about = "What the methods do not share."
    if any(row.settings for row in rows):
        about += (
            " Bold: chosen among nine trials on the first seed by the result on validation data;"
            " test data was not looked at."
        )
    nested: dict[str, Any] = {}
    for key, value in common.items():
        table, _, inner = key.rpartition(".")
        if table:
            nested.setdefault(table, {})[inner] = value
        else:
            nested[key] = value
    return _SETTINGS.substitute(about=about, rows="".join(body), common=words.configuration(nested))
