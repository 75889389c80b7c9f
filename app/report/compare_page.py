"""The page of a comparison: comparison.html, one file that opens offline and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from app.report import compare
from app.report import report_words as words
from app.report.compare import Row
from app.report.compare_data import page_data
from app.report.compare_figures import FIGURES
from app.report.compare_script import CURVES, TABLE
from app.report.compare_tables import results, settings
from app.report.page import document
from app.report.page_plot import PLOT
from app.report.page_script import HELPERS
from app.runs import atomic, units

_CURVES = Template("""<section>
<div class="head"><h2>Learning curves</h2></div>
<p class="about">$about</p>
<div class="controls"><div class="seg" id="measure" role="group" aria-label="Measure"></div>
<div class="seg" id="axis" role="group" aria-label="Horizontal axis"></div>
<div class="seg" id="scale" role="group" aria-label="Vertical scale"></div>
<div class="seg" id="scale-x" role="group" aria-label="Horizontal scale"></div></div>
<div class="chart" id="curves"></div>
<div class="keys" id="keys"></div>
<p class="readout" id="curve-note"></p>
<noscript><p class="notice">The figures need a script; the tables do without.</p></noscript>
</section>""")

_GAINS = Template("""<section>
<div class="head"><h2>Gain over local, peer by peer</h2></div>
<p class="about">$about</p>
<div class="controls"><div class="seg" id="gain-scale" role="group" aria-label="Scale"></div></div>
<div class="chart" id="gains"></div>
</section>""")

_MAPS = Template("""<section>
<div class="head"><h2>Who collaborates with whom</h2></div>
<p class="about">$about</p>
<div class="controls"><div class="seg" id="map-seed" role="group" aria-label="Seed"></div>
<div class="ramp"><span>0</span><i></i><span>largest weight of the map</span></div></div>
<div class="player above" id="player"><button type="button" id="play"></button>
<p class="readout" id="frame"></p>
<input type="range" id="slider" min="0" step="1" aria-label="Round"></div>
<div class="maps" id="maps"></div>
<p class="readout" id="silent"></p>
</section>""")


def write(rows: Sequence[Row], directory: Path, title: str) -> Path:
    """Write comparison.html into `directory`.

    Parameters
    ----------
    rows : what `compare.rows` made, at least one, all methods over the same seeds.
    title : the page's heading.

    Returns
    -------
    path of the page.
    """
    target = directory / "comparison.html"
    atomic.write(target, render(rows, title))
    return target


def render(rows: Sequence[Row], title: str) -> str:
    """Return the page's HTML; every text that comes from a file is escaped."""
    data = page_data(rows)
    head = f'{_notice(rows)}\n<p class="lede">{escape(lede(rows))}</p>'
    return document(
        "Coterie comparison", title, _facts(rows), head, _sections(rows, data), _FOOTER, data,
        HELPERS + PLOT + TABLE + CURVES + FIGURES,
    )  # fmt: skip


_FOOTER = (
    '<p>Every number at full precision: <a href="comparison.csv">comparison.csv</a>.'
    ' The table for a paper: <a href="comparison.tex">comparison.tex</a>.</p>'
    "<p>Beside this file lies a directory for each run, with its own <code>report.html</code>"
    " after <code>python -m app report RUN_DIR</code>.</p>"
)


def lede(rows: Sequence[Row]) -> str:
    """Say in a sentence which method came out best, and what it gains."""
    columns = {column.key: column for column in compare.shown(rows)}
    main = columns.get("accuracy") or columns.get("loss")
    if main is None or not any(row.summary(main) for row in rows):
        return "There is nothing to compare yet."
    end = max if main.better == "high" else min
    means = {row.method: found[0] for row in rows if (found := row.summary(main))}
    top = next(row for row in rows if row.method == end(means, key=means.__getitem__))
    reached = compare.cell(top, main)
    what = "mean test accuracy" if main.key == "accuracy" else "mean test loss"
    told = f"{top.method} reaches a {what} of {reached}"
    if len(means) > 1:
        superlative = "highest" if main.better == "high" else "lowest"
        told = f"Of {len(means)} methods, {top.method} reaches the {superlative} {what}, {reached}"
    told += " %" if main.key == "accuracy" else ""
    gain, improved = map(columns.get, ("gain", "improved"))
    if top.method != "local" and gain and improved and top.summary(gain):
        told += (
            f": {compare.cell(top, gain)} points over local,"
            f" better for {improved.show((top.summary(improved) or (0.0, 0.0))[0])} % of the peers"
        )
    return told.replace(" %", "\u00a0%") + "."


def _facts(rows: Sequence[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    first = runs[0]
    seeds = [str(run.config.get("seed")) for run in rows[0].runs]
    peers = units.plural(first.peers, "peer")
    if first.clusters is not None:
        peers += f" in {units.plural(len(set(first.clusters.tolist())), 'true cluster')}"
    partition = first.config.get("partition")
    kind = partition.get("kind") if isinstance(partition, dict) else None
    return [
        str(first.config.get("dataset", "unknown data")),
        *([f"{kind} split"] if kind else []),
        peers,
        units.plural(len(rows), "method"),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}",
        units.plural(
            int(first.config.get("num-server-rounds", first.rounds.max(initial=0))), "round"
        ),
        words.date(runs),
    ]


def _notice(rows: Sequence[Row]) -> str:
    runs = [run for row in rows for run in row.runs]
    unfinished = sum(run.progress.get("status") != "finished" for run in runs)
    if not unfinished:
        return ""
    told = f"{unfinished} of {units.plural(len(runs), 'run')} have not finished"
    return f'<p class="notice" role="note">{told}; the numbers are those so far.</p>'


def _sections(rows: Sequence[Row], data: Mapping[str, Any]) -> list[str]:
    several = len(rows[0].runs) > 1
    sections = [results(rows, several=several)]
    if data["metrics"]:
        about = "Mean over the peers, each measured with its personal model on its own data"
        about += ", and over the seeds; bands are one standard deviation over seeds either way."
        sections.append(
            _CURVES.substitute(about=about if several else about.split(", and")[0] + ".")
        )
    if data["gains"]:
        what = (
            "test accuracy less" if data["gains"]["accuracy"] else "reduction of the test loss of"
        )
        about = (
            f"Every dot is one peer of one seed: its {what} its own under local, same seed and same"
            " data. The stroke is the mean."
        )
        sections.append(_GAINS.substitute(about=about))
    if data["maps"]:
        about = "Row: the peer that listens; column: the peer it listens to."
        if data["clusters"]:
            about += " True clusters are framed; F1 says how well the learnt edges match them."
        sections.append(_MAPS.substitute(about=about))
    return [*sections, settings(rows)]
