"""Diagnostic accuracy, or C-index, by peer as a section of a run's and of a comparison's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Section
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
    interval: str = ""

    @classmethod
    def of(cls, estimate: Estimate | None) -> EstimateCell:
        """Write an estimate."""
        if estimate is None or np.isnan(estimate[0]):
            return cls(units.NONE)
        value, low, high = estimate
        return cls(f"{value:.2f}", "" if np.isnan(low) else f"{low:.2f} to {high:.2f}")


class DiagnosticRow(NamedTuple):
    """Name of a peer, of a method or "", numbers of test examples and positives, and cells."""

    name: str
    method: str
    examples: str
    positives: str
    cells: list[EstimateCell]


@dataclass(frozen=True)
class DiagnosticTable(Section):
    """Table by peer; `total` counts all peers, `counted` is the title of `positives`.

    `chosen` are the measures at the thresholds that the validation examples chose.
    """

    heading: str
    about: str
    counted: str
    titles: list[str]
    rows: list[DiagnosticRow]
    total: int
    file: str
    chosen: list[DiagnosticRow] = field(default_factory=list)
    written: Mapping[str, str] = field(default_factory=dict)

    template = "diagnostics.html.j2"
    chosen_titles = ("Threshold", *(MEASURES[name] for name in _AT_THRESHOLD))

    def files(self) -> Mapping[str, str]:
        """Return the file of a comparison; that of a run is written with its summary."""
        return self.written


def of_run(run: Run) -> DiagnosticTable | None:
    """Return the diagnostics of a run; None without models of two classes on this machine."""
    of_peers = diagnostics.read(run)
    if not of_peers:
        return None
    rows, chosen, shown = [], [], _shown(run)
    for peer, each in list(of_peers.items())[:SHOWN]:
        first = run.names[peer], "", f"{each.examples:,}", f"{each.positives:,}"
        rows.append(DiagnosticRow(*first, [EstimateCell.of(each.measures.get(k)) for k in shown]))
        if each.threshold is not None:
            decided = [EstimateCell.of(each.at_threshold.get(name)) for name in _AT_THRESHOLD]
            chosen.append(DiagnosticRow(*first, [EstimateCell(f"{each.threshold:.3f}"), *decided]))
    titles = [MEASURES[name] for name in shown]
    return DiagnosticTable(
        *_words(run), titles, rows, len(of_peers), diagnostics.FILE, chosen
    )  # fmt: skip


def compared(comparison: Comparison) -> DiagnosticTable | None:
    """Return the diagnostics of a comparison: a row for each peer and method, means over seeds.

    A peer is identified by its name, as in `by_peer`; those that cannot be judged are left out,
    unless none can.
    """
    results: dict[str, dict[str, list[Diagnostics]]] = {}
    lines: list[list[object]] = [["method", "seed", *diagnostics.HEAD]]
    for row in comparison.table.rows:
        for run in row.runs:
            cards, few = comparison.cards(run), judged.unjudged(run)
            first = [row.method, run.config.get("seed")]
            lines += [[*first, *line] for line in diagnostics.rows(run, cards)]
            for peer, each in cards.items():
                if peer not in few or len(few) == run.peers:
                    results.setdefault(run.names[peer], {}).setdefault(row.label, []).append(each)
    if not results:
        return None
    first_run = comparison.runs[0]
    made, shown = [], _shown(first_run)
    for name, of_methods in list(results.items())[:SHOWN]:
        for method, several in of_methods.items():
            means = np.mean([(each.examples, each.positives) for each in several], axis=0)
            estimates = [mean_estimate([each.measures.get(k) for each in several]) for k in shown]
            numbers = [f"{mean:,.0f}" for mean in means]
            made.append(DiagnosticRow(name, method, *numbers, [*map(EstimateCell.of, estimates)]))
    heading, about, counted = _words(first_run)
    if comparison.has_several:
        about += " Values and intervals are means over seeds."
    return DiagnosticTable(
        f"{heading} by peer", about, counted, [MEASURES[name] for name in shown], made,
        len(results), FILE, written={FILE: cells.as_csv(lines)},
    )  # fmt: skip


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


def mean_estimate(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the mean of values and of the ends of intervals, where they are defined."""
    known = [each for each in estimates if each is not None and not np.isnan(each[0])]
    if not known:
        return None
    value, low, high = np.mean(known, axis=0).tolist()
    return value, low, high
