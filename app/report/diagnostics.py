"""Diagnostic accuracy, or C-index, by peer as sections of a run's and of a comparison's page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.app.report.comparison import Comparison
from coterie.app.report.panel import Cell, Heading, Panel
from coterie.app.report.words import unjudged
from coterie.app.runs import atomic, diagnostics, quality, units
from coterie.app.runs.diagnostics import Diagnostics
from coterie.app.runs.rundir import Run
from coterie.clients.diagnostics import DECISIONS, MEASURES, Estimate

FILE = "comparison-diagnostics.csv"
SHOWN = 100
"""Number of peers that a page lists."""
_OF_CLASSES = [name for name in MEASURES if name not in ("accuracy", "c_index")]
_AT_THRESHOLD = [name for name in DECISIONS if name != "accuracy"]


def of_run(run: Run) -> Panel | None:
    """Return the diagnostics of a run; None without models of two classes on this machine."""
    if not run.diagnostics:
        return None
    heading, about, counted, shown = _words(run)
    rows = [
        (run.names[peer], [*_counts(each), *(_cell(each.measures.get(name)) for name in shown)])
        for peer, each in list(run.diagnostics.items())[:SHOWN]
    ]
    about += f" diagnostics.csv has every number.{_cut(len(run.diagnostics))}"
    return Panel("diagnostics", heading, [about], _columns(counted, shown), rows, kind="narrow")


def at_thresholds(run: Run) -> Panel | None:
    """Return the measures at the thresholds that the validation examples chose; None without."""
    rows = [
        (run.names[peer], [*_counts(each), Cell(f"{each.threshold:.3f}"),
                           *(_cell(each.at_threshold.get(name)) for name in _AT_THRESHOLD)])
        for peer, each in run.diagnostics.items()
        if each.threshold is not None
    ]  # fmt: skip
    columns = _columns(_words(run)[2], _AT_THRESHOLD, Heading("Threshold"))
    about = f"At the thresholds that validation examples chose (Youden).{_cut(len(rows))}"
    heading = "Diagnostic accuracy at chosen thresholds"
    shown = rows[:SHOWN]
    return Panel("thresholds", heading, [about], columns, shown, kind="narrow") if rows else None


def compared(comparison: Comparison) -> Panel | None:
    """Return the diagnostics of a comparison: a row for each peer and method, means over seeds."""
    results: dict[str, dict[str, list[Diagnostics]]] = {}
    lines: list[list[object]] = [["method", "seed", *diagnostics.HEAD]]
    for row in comparison.table.rows:
        for run in row.runs:
            few, first = quality.too_few_rows(run), [row.method, run.settings.seed]
            lines += [[*first, *line] for line in diagnostics.rows(run)]
            for peer, each in run.diagnostics.items():
                if peer not in few or len(few) == run.peers:
                    results.setdefault(run.names[peer], {}).setdefault(row.label, []).append(each)
    if not results:
        return None
    first_run = comparison.runs[0]
    heading, about, counted, shown = _words(first_run)
    rows = [
        (name, [Cell(method, mark="text"), *_counts(*of),
                *(_cell(mean_estimate([each.measures.get(k) for each in of])) for k in shown)])
        for name, of_methods in list(results.items())[:SHOWN]
        for method, of in of_methods.items()
    ]  # fmt: skip
    about += " Values and intervals are means over seeds." * comparison.has_several
    about += f" {FILE} has every number.{_cut(len(results))}"
    if (without := unjudged(first_run)) and len(results) < first_run.peers:
        about += f" Left out: {without}."
    return Panel(
        "diagnostics", f"{heading} by peer", [about],
        _columns(counted, shown, of_methods=True), rows, kind="narrow",
        written={FILE: atomic.as_csv(lines)},
    )  # fmt: skip


def _cut(peers: int) -> str:
    return f" The table has {SHOWN} of {peers:,} peers." * (peers > SHOWN)


def _columns(
    counted: str, names: Sequence[str], *more: Heading, of_methods: bool = False
) -> list[Heading]:
    method = [Heading("Method", mark="text")] * of_methods
    measures = [Heading(MEASURES[name]) for name in names]
    return [Heading("Peer"), *method, Heading("Examples"), Heading(counted), *more, *measures]


def _counts(*of: Diagnostics) -> list[Cell]:
    means = np.mean([(each.examples, each.positives) for each in of], axis=0)
    return [Cell(f"{mean:,.0f}") for mean in means]


def _cell(estimate: Estimate | None) -> Cell:
    if estimate is None or np.isnan(estimate[0]):
        return Cell(units.NONE)
    value, low, high = estimate
    return Cell(f"{value:.2f}", "" if np.isnan(low) else f"{low:.2f} to {high:.2f}")


def _words(run: Run) -> tuple[str, str, str, list[str]]:
    """Return heading, explanation, the title of `positives`, and the names of the measures."""
    drawn = "groups" if run.is_grouped else "examples"
    on = "Final personal models on their peers’ own test examples"
    if not np.isnan(run.metric("c_index")).all():
        return (
            "Survival",
            f"{on}. C-index (Harrell): share of the comparable pairs in which the example with the "
            "earlier event has the higher risk; 0.5 is chance. Equal risks count one half; two "
            "events at the same time are not compared; censored at the time of an event counts as "
            f"later. Small: 95 % interval, bootstrap over {drawn}.",
            "Events",
            ["c_index"],
        )
    positive = run.classes[1] if len(run.classes) == 2 else "1"
    return (
        "Diagnostic accuracy",
        f"{on}; positive: {positive}. Predicted positive: probability above 0.5. O/E: observed "
        "positives over the sum of their predicted probabilities. Small: 95 % intervals "
        f"(Wilson for shares, bootstrap over {drawn} for the others).",
        "Positive",
        _OF_CLASSES,
    )


def mean_estimate(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean of values and of the ends of intervals, where they are defined."""
    known = [each for each in estimates if each is not None and not np.isnan(each[0])]
    if not known:
        return None
    value, low, high = np.mean(known, axis=0).tolist()
    return value, low, high
