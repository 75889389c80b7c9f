"""Data quality on a run's page: a row per column of the data and a column per peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.app.report.section import Section
from coterie.app.runs import quality, units
from coterie.app.runs.rundir import Run
from coterie.datasets.quality import ColumnQuality, remedy

MAX_PEERS = 12
"""Number of peers above which the page lists the findings only."""
SHOWN = 100
"""Maximum number of columns, and of findings, that the page lists."""

_MAX_DAYS = 1e6


class QualityCell(NamedTuple):
    """Median and range of a column at a peer, share of missing values, and finding; may be ""."""

    text: str
    missing: str
    finding: str


@dataclass(frozen=True)
class QualityTable(Section):
    """Names of the peers; column -> cell of each peer (empty for many peers); peer and finding.

    The remedy is for values that mean "not measured"; "" without any.
    """

    peers: list[str]
    columns: dict[str, list[QualityCell]]
    findings: list[tuple[str, str]]
    n_findings: int
    n_columns: int
    remedy: str

    template = "quality.html.j2"


def table(run: Run) -> QualityTable | None:
    """Return the data quality of a run; None without quality.csv."""
    qualities = quality.read(run.directory, run.peers)
    if not qualities:
        return None
    ranked = sorted((each for each in qualities if each.finding), key=lambda each: each.rank)
    peers = sorted({each.peer for each in qualities})
    names = list(dict.fromkeys(each.column for each in qualities if each.kind != "rows"))
    columns = {}
    if len(peers) <= MAX_PEERS:
        by_place = {(each.column, each.peer): each for each in qualities}
        columns = {
            name: [_cell(by_place.get((name, peer))) for peer in peers] for name in names[:SHOWN]
        }
    return QualityTable(
        [run.names[peer] for peer in peers],
        columns,
        [(run.names[each.peer], each.finding) for each in ranked[:SHOWN]],
        len(ranked),
        len(names),
        remedy(qualities, str(run.config.get("dataset"))),
    )


def _cell(column: ColumnQuality | None) -> QualityCell:
    if column is None:
        return QualityCell(units.NONE, "", "")
    percent = f"{100 * column.missing:.0f} %" if column.missing >= 0.01 else "under 1 %"
    missing = f"{percent} missing" if column.missing else ""
    return QualityCell(_range(column), missing, column.finding)


def _range(column: ColumnQuality) -> str:
    if column.kind == "category":
        return units.plural(column.distinct, "value")
    if np.isnan(column.median):
        return units.NONE
    show = _date if column.kind == "date" else "{:.4g}".format
    if column.distinct == 2 and (column.low, column.high) == (0, 1):
        return f"{100 * column.mean:.0f} % are 1"
    low, median, high = map(show, (column.low, column.median, column.high))
    return f"{median} ({low} to {high})"


def _date(days: float) -> str:
    if abs(days) > _MAX_DAYS:
        return f"{days:.4g}"
    return str(np.datetime64(0, "D") + np.timedelta64(round(days), "D"))
