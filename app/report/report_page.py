"""Put the report page together: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from string import Template
from typing import Any

from app.report import report_words as words
from app.report.page import document
from app.report.page_plot import PLOT
from app.report.page_script import HELPERS
from app.report.report_curves import CURVES
from app.report.report_network import NETWORK
from app.report.report_table import TABLE
from app.runs import units
from app.runs.rundir import Run

CURVES_SECTION = """<section>
<div class="head"><h2>Learning curves</h2></div>
<p class="about">One thin line per peer, measured with its personal model on its own data.</p>
<div class="controls"><div class="seg" id="measure" role="group" aria-label="Measure"></div>
<div class="seg" id="axis" role="group" aria-label="Horizontal axis"></div>
<div class="seg" id="scale" role="group" aria-label="Scale of the loss"></div></div>
<div class="chart" id="curves"></div>
<div class="legend" id="curve-legend"></div>
<noscript><p class="notice">The figures need a script; curves.png beside this file shows
the curves without one.</p></noscript>
</section>"""

GRAPH_SECTION = Template("""<section>
<div class="head"><h2>Who collaborates with whom</h2></div>
<p class="about">$about</p>
<div class="pair">
<div><h3>Collaboration weights</h3><canvas id="heat" role="img"
 aria-label="Heat map: weight that the row's peer gives to the column's peer"></canvas>
<div class="ramp"><span>0</span><i></i><span id="top"></span>
<span>weight that the row’s peer gives to the column’s</span></div></div>
<div><h3>Learnt graph</h3><canvas id="graph" role="img"
 aria-label="Graph of the peers; edges by weight"></canvas>
<div class="legend" id="graph-legend"></div></div>
</div>
<div class="strip readout">$strip</div>
<div class="player" id="player"><button type="button" id="play"></button>
<div id="strip"></div>
<input type="range" id="slider" min="0" step="1" aria-label="Round"></div>
<p class="readout" id="frame"></p>
</section>""")

SPLIT_SECTION = Template("""<section>
<div class="head"><h2>Who holds which data</h2></div>
<p class="about">$about</p>
<div class="block" style="margin-top:18px"><canvas id="split" role="img"
 aria-label="Training examples of each peer and class"></canvas>
<div class="ramp"><span>0</span><i></i><span id="split-top"></span>
<span>examples of a class</span></div></div>
</section>""")

TABLE_SECTION = Template("""<section>
<div class="head"><h2>Peers</h2></div>
<p class="about">$about</p>
<div class="scroll" tabindex="0"><table id="peers"></table></div>
</section>""")

COST_SECTION = Template("""<section>
<div class="head"><h2>Cost</h2></div>
<p class="about">$about</p>
<div class="scroll cost"><table><thead><tr><th></th><th>In all</th><th>Mean per peer</th>
<th>Least</th><th>Most</th><th>Per peer and round</th></tr></thead>
<tbody>$rows</tbody></table></div>
</section>""")

CONFIG_SECTION = Template("""<section>
<div class="head"><h2>Configuration</h2></div>
<p class="about">Everything resolved, as in <code>config.toml</code>, which runs again to the
same numbers.</p>
$configuration
</section>""")


def render(run: Run, summary: Mapping[str, Any], data: Mapping[str, Any], date: str) -> str:
    """Return the page's HTML; every text that comes from a file is escaped.

    Parameters
    ----------
    run, summary, data : the run, `results.summarise` and `report_data.page_data` of it.
    date : when the run was last written to, in words.
    """
    title = f"{run.config['method']} on {run.config.get('dataset', 'unknown data')}"
    lede = escape(words.lede(run, summary))
    return document(
        "Coterie run report",
        title,
        _facts(run, summary, date),
        f'{_notice(run)}\n<p class="lede">{lede}</p>\n'
        f'<dl class="tiles">{words.tiles(run, summary)}</dl>',
        _sections(run, summary, data),
        _footer(run, summary),
        data,
        HELPERS + PLOT + CURVES + NETWORK + TABLE,
    )


def _facts(run: Run, summary: Mapping[str, Any], date: str) -> list[str]:
    clusters = run.clusters
    peers = units.plural(run.peers, "peer")
    if clusters is not None:
        peers += f" in {units.plural(len(set(clusters.tolist())), 'true cluster')}"
    partition = run.config.get("partition")
    kind = partition.get("kind") if isinstance(partition, dict) else None
    return [
        peers,
        *([f"{kind} split"] if kind else []),
        f"seed {summary['seed']}",
        units.plural(summary["rounds"], "round"),
        date,
    ]


def _notice(run: Run) -> str:
    status, error = run.progress.get("status"), run.progress.get("error")
    if status == "finished":
        return ""
    told = f"This run {'failed' if status == 'failed' else 'has not finished'}"
    if "round" in run.progress and "rounds" in run.progress:
        told += f" (round {run.progress['round']} of {run.progress['rounds']})"
    told += f": {error}" if error else "; the numbers are those so far."
    return f'<p class="notice" role="note">{escape(told)}</p>'


def _sections(run: Run, summary: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    sections = [CURVES_SECTION] if len(run.rounds) else []
    sections.append(_graph_section(data))
    if data["labels"] is not None:
        order = "Peers are listed by true cluster. " if data["clusters"] else ""
        about = f"{order}Bars: training examples per peer. Below: how many of each class."
        sections.append(SPLIT_SECTION.substitute(about=about))
    about = "Click a heading to sort, a row to follow that peer through the figures."
    if data["best"] is not None:
        about += " “Best” is the test result at the round that was best on the peer’s validation"
        about += " data."
    sections.append(TABLE_SECTION.substitute(about=about))
    rows = words.cost_rows(run)
    if rows:
        about = "Payload bytes between peers, counted the same whoever hosts them."
        if summary["messages"] is not None and summary["wall_seconds"] is not None:
            about += (
                f" The relay exchanged {units.plural(summary['messages'], 'message')} with the"
                f" nodes in {units.duration(summary['wall_seconds'])}."
            )
        sections.append(COST_SECTION.substitute(about=about, rows=rows))
    sections.append(CONFIG_SECTION.substitute(configuration=words.configuration(run.config)))
    return sections


def _graph_section(data: Mapping[str, Any]) -> str:
    graph = data["graph"]
    if graph is None:
        return (
            '<section><div class="head"><h2>Who collaborates with whom</h2></div>'
            '<p class="about">Nobody: in this run no peer gave another peer’s model any weight,'
            " so there is no graph to show.</p></section>"
        )
    about = (
        "Each half of an edge is as strong as the weight that the peer at its end gives to the"
        " other. An edge counts as learnt when it exceeds half of the largest weight in its row,"
        " the peer’s own included."
    )
    if len(graph["rounds"]) < graph["recorded"]:
        about += f" Shown are {len(graph['rounds'])} of {graph['recorded']} recorded rounds."
    if data["clusters"] is None:
        about += " Peers that collaborate stand next to each other."
    strip = ""
    if graph["scores"] and len(graph["rounds"]) > 1:
        strip = (
            "Recovery of the true clusters, from 0 to 1:"
            ' <b style="color:var(--accent)">F1</b> of the edges and'
            ' <b style="color:#d9822b">adjusted Rand index</b> (dashed) of the groups'
        )
    return GRAPH_SECTION.substitute(about=about, strip=strip)


def _footer(run: Run, summary: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    pictures = " and ".join(
        f'<a href="{name}">{name}</a>'
        for name in ("curves.png", "collaboration.png")
        if (run.directory / name).exists()
    )
    beside = f"<p>Still pictures beside this file: {pictures}.</p>" if pictures else ""
    again = "<p>Run it again: <code>python -m app run config.toml</code></p>"
    return f"{again}{beside}<p>{escape(versions)}</p>"
