"""Diagnostic accuracy, or C-index, by peer as tables of a run's and of a comparison's page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.app.experiments.table import Table
from coterie.app.runs import cells, diagnostics, judged, units
from coterie.app.runs.diagnostics import Diagnostics
from coterie.app.runs.rundir import Run
from coterie.clients.diagnostics import DECISIONS, MEASURES, Estimate

FILE = "comparison-diagnostics.csv"
SHOWN = 100
"""Number of peers that a page lists."""
_OF_CLASSES = [name for name in MEASURES if name not in ("accuracy", "c_index")]
_AT_THRESHOLD = [name for name in DECISIONS if name != "accuracy"]


class EstimateCell(NamedTuple):
    """Value of a measure and its 95 % interval; the interval is "" where undefined."""

    text: str
    interval: str


class DiagnosticRow(NamedTuple):
    """Name of a peer, of a method or "", numbers of test examples and positives, and cells."""

    name: str
    method: str
    examples: str
    positives: str
    cells: list[EstimateCell]


class DiagnosticTable(NamedTuple):
    """Heading, explanation, title of `positives` and of the measures, rows, number of all peers."""

    heading: str
    about: str
    counted: str
    titles: list[str]
    rows: list[DiagnosticRow]
    chosen: list[DiagnosticRow]
    chosen_titles: list[str]
    total: int


def table(run: Run) -> DiagnosticTable | None:
    """Return the diagnostics of a run; None without models of two classes on this machine.

    `chosen` are the measures at the thresholds that the validation examples chose.
    """
    of_peers = diagnostics.read(run)
    if not of_peers:
        return None
    rows, chosen, shown = [], [], _shown(run)
    for peer, each in list(of_peers.items())[:SHOWN]:
        numbers = f"{each.examples:,}", f"{each.positives:,}"
        estimates = [each.measures.get(name) for name in shown]
        rows.append(_row(run.names[peer], "", numbers, estimates))
        if each.threshold is not None:
            decided = [each.at_threshold.get(name) for name in _AT_THRESHOLD]
            row = _row(run.names[peer], "", numbers, decided)
            cells = [EstimateCell(f"{each.threshold:.3f}", ""), *row.cells]
            chosen.append(row._replace(cells=cells))
    return DiagnosticTable(
        *_words(run),
        [MEASURES[name] for name in shown],
        rows,
        chosen,
        ["Threshold", *(MEASURES[name] for name in _AT_THRESHOLD)],
        len(of_peers),
    )


def compared(table: Table) -> DiagnosticTable | None:
    """Return the diagnostics of a comparison: a row for each peer and method, means over seeds.

    A peer is identified by its name, as in `by_peer`; those that cannot be judged are left out,
    unless none can.
    """
    results: dict[str, dict[str, list[Diagnostics]]] = {}
    for row in table.rows:
        for run in row.runs:
            few = judged.unjudged(run)
            for peer, each in diagnostics.read(run).items():
                if peer in few and len(few) < run.peers:
                    continue
                results.setdefault(run.names[peer], {}).setdefault(row.label, []).append(each)
    if not results:
        return None
    first = table.rows[0].runs[0]
    made, shown = [], _shown(first)
    for name, of_methods in list(results.items())[:SHOWN]:
        for method, several in of_methods.items():
            numbers = tuple(
                f"{np.mean([getattr(each, key) for each in several]):,.0f}"
                for key in ("examples", "positives")
            )
            cells = [mean_estimate([each.measures.get(key) for each in several]) for key in shown]
            made.append(_row(name, method, numbers, cells))
    titles = [MEASURES[name] for name in shown]
    return DiagnosticTable(*_words(first), titles, made, [], [], len(results))


def as_csv(table: Table) -> str:
    """Write a line per method, seed, peer, threshold and measure; "" without diagnostics."""
    lines = [
        [row.method, run.config.get("seed"), *line]
        for row in table.rows
        for run in row.runs
        for line in diagnostics.rows(run)
    ]
    if not lines:
        return ""
    return cells.as_csv([["method", "seed", *diagnostics.HEAD], *lines])


def _is_survival(run: Run) -> bool:
    return not np.isnan(run.metric("c_index")).all()


def _shown(run: Run) -> list[str]:
    return ["c_index"] if _is_survival(run) else _OF_CLASSES


def _words(run: Run) -> tuple[str, str, str]:
    """Return heading, explanation and the title of `positives`."""
    drawn = "groups" if run.is_grouped else "examples"
    on = "Final personal models on their peers’ own test examples"
    if _is_survival(run):
        return (
            "Survival",
            f"{on}. C-index (Harrell): share of the comparable pairs in which the example with the "
            "earlier event has the higher risk; 0.5 is chance. Equal risks count one half; two "
            "events at the same time are not compared; censored at the time of an event counts as "
            f"later. Small: 95 % interval, bootstrap over {drawn}.",
            "Events",
        )
    positive = run.classes[1] if len(run.classes) == 2 else "1"
    return (
        "Diagnostic accuracy",
        f"{on}; positive: {positive}. Predicted positive: probability above 0.5. O/E: observed "
        "positives over the sum of their predicted probabilities. Small: 95 % intervals "
        f"(Wilson for shares, bootstrap over {drawn} for the others).",
        "Positive",
    )


def _row(
    name: str, method: str, numbers: Sequence[str], estimates: Sequence[Estimate | None]
) -> DiagnosticRow:
    examples, positives = numbers
    return DiagnosticRow(name, method, examples, positives, [*map(_cell, estimates)])


def _cell(estimate: Estimate | None) -> EstimateCell:
    if estimate is None or np.isnan(estimate[0]):
        return EstimateCell(units.NONE, "")
    value, low, high = estimate
    return EstimateCell(f"{value:.2f}", "" if np.isnan(low) else f"{low:.2f} to {high:.2f}")


def mean_estimate(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean of values and of the ends of intervals, where they are defined."""
    known = [each for each in estimates if each is not None and not np.isnan(each[0])]
    if not known:
        return None
    value, low, high = np.mean(known, axis=0).tolist()
    return value, low, high
