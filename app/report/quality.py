"""Data quality on a run's page: a row per column of the data and a column per peer."""

from __future__ import annotations

import numpy as np

from coterie.app.report.panel import Cell, Heading, Panel
from coterie.app.runs import quality, units
from coterie.app.runs.rundir import Run
from coterie.datasets.quality import ColumnQuality, remedy

MAX_PEERS = 12
"""Number of peers above which the page lists the findings only."""
SHOWN = 100
"""Maximum number of columns, and of findings, that the page lists."""

_MAX_DAYS = 1e6


def of_run(run: Run) -> Panel | None:
    """Return the data quality of a run; None without quality.csv."""
    qualities = quality.read(run.directory, run.peers)
    if not qualities:
        return None
    marked = sorted((each for each in qualities if each.finding), key=lambda each: each.rank)
    peers = sorted({each.peer for each in qualities})
    names = list(dict.fromkeys(each.column for each in qualities if each.kind != "rows"))
    rows, about, notes = [], [], []
    if len(peers) <= MAX_PEERS:
        by_place = {(each.column, each.peer): each for each in qualities}
        rows = [
            (name, [_cell(by_place.get((name, peer))) for peer in peers]) for name in names[:SHOWN]
        ]
        more = f" {SHOWN} of {len(names)} columns; quality.csv has all." * (len(names) > SHOWN)
        about = [f"Cells before preprocessing, all rows of each peer: median and range.{more}"]
    if marked and (text := remedy(qualities, run.settings.dataset)):
        notes.append(f"Values that may mean “not measured”, {text}.")
    if len(marked) > SHOWN:
        notes.append(f"{SHOWN} of {len(marked)} findings; quality.csv has all.")
    findings = [f"{run.names[each.peer]}: {each.finding}" for each in marked[:SHOWN]]
    return Panel(
        "quality", "Data quality", about,
        [Heading("Column"), *(Heading(run.names[peer]) for peer in peers)], rows,
        notes=notes if marked else ["No findings."], lists={"Findings": findings},
    )  # fmt: skip


def _cell(column: ColumnQuality | None) -> Cell:
    """Write median and range of a column at a peer, and the share of missing values."""
    if column is None:
        return Cell(units.NONE)
    missing = f"{_percent(column.missing)} missing" if column.missing else ""
    mark = "harm" if column.finding else None
    return Cell(_range(column), missing, mark=mark, title=column.finding or None)


def _range(column: ColumnQuality) -> str:
    if column.kind == "category":
        return units.plural(column.distinct, "value")
    if np.isnan(column.median):
        return units.NONE
    show = _date if column.kind == "date" else "{:.4g}".format
    if column.distinct == 2 and (column.low, column.high) == (0, 1):
        return f"{_percent(column.mean)} are 1"
    low, median, high = map(show, (column.low, column.median, column.high))
    return f"{median} ({low} to {high})"


def _percent(share: float) -> str:
    if 0.99 < share < 1:
        return "over 99 %"
    return "under 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _date(days: float) -> str:
    if abs(days) > _MAX_DAYS:
        return f"{days:.4g}"
    return str(np.datetime64(0, "D") + np.timedelta64(round(days), "D"))
