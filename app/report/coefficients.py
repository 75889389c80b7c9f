"""Coefficients of partial pooling: forest plots by column, groups of institutions in words."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from coterie.app.report.section import Section
from coterie.app.runs import files
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.app.trained.coefficients import FILE

_SHOWN = 24
"""Maximum number of columns with a plot: those whose coefficients differ most from 0."""
_WIDTH, _LEFT, _ROW, _TOP = 340, 110, 18, 8
"""Pixels of a plot, of its labels, of a row, and above the first row."""


class Mark(NamedTuple):
    """Row of a forest plot, in pixels: the interval, the estimate, and the estimate at home."""

    label: str
    y: float
    low: float
    high: float
    estimate: float
    own: float | None  # None: the row is a group
    title: str


class Plot(NamedTuple):
    """Forest plot of one column."""

    column: str
    about: str
    ticks: Sequence[tuple[float, str]]  # of the lowest end, no effect and the highest end
    height: int
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Coefficients(Section):
    """Groups of institutions, and the coefficients of each column."""

    plots: Sequence[Plot]
    sentences: Sequence[str]
    left_out: int
    odds: bool  # coefficients are log odds

    template = "coefficients.html.j2"
    width, left = _WIDTH, _LEFT

    def lines(self) -> Sequence[str]:
        return self.sentences


def of_run(run: Run) -> Coefficients | None:
    """Return the section of a run with coefficients.csv, or None."""
    text = files.text(run.directory, FILE)
    if text is None:
        return None
    odds = run.has_accuracy or not np.isnan(run.metric("c_index")).all()
    try:
        return _section(list(csv.DictReader(text.splitlines(), strict=True)), odds=odds)
    except (csv.Error, ValueError, TypeError, KeyError) as error:
        raise ResultsError(
            f"{run.directory / FILE}: not a table of coefficients: {error}"
        ) from None


def _section(rows: Sequence[Mapping[str, str]], *, odds: bool) -> Coefficients:
    by_column: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        by_column.setdefault(row["column"], []).append(row)
    names = [name for name in by_column if name.rpartition(": ")[2] != "intercept"]
    names.sort(key=lambda name: -max(abs(float(row["estimate"])) for row in by_column[name]))
    plots = [_plot(name, by_column[name], odds=odds) for name in names[:_SHOWN]]
    return Coefficients(plots, _sentences(rows), max(len(names) - _SHOWN, 0), odds)


def _plot(column: str, rows: Sequence[Mapping[str, str]], *, odds: bool) -> Plot:
    """Return the plot of one column."""
    numbers = np.array([[float(row[name]) for name in ("low", "high")] for row in rows])
    low, high = min(numbers.min(), 0.0), max(numbers.max(), 0.0)
    scale = (_WIDTH - _LEFT - 10) / max(high - low, 1e-12)

    def x(value: float) -> float:
        return float(round(_LEFT + (value - low) * scale, 1))

    marks = []
    for i, row in enumerate(rows):
        ends = [float(row[name]) for name in ("estimate", "low", "high")]
        ends = [float(np.exp(end)) for end in ends] if odds else ends
        what = "odds ratio " if odds else ""
        title = f"{row['institution']}: {what}{ends[0]:.3g}, 95 % {ends[1]:.3g} to {ends[2]:.3g}"
        own = x(np.clip(float(row["own"]), low, high)) if row["own"] else None
        start, end, middle = (x(float(row[name])) for name in ("low", "high", "estimate"))
        y = _TOP + _ROW * (i + 0.5)
        marks.append(Mark(row["institution"], y, start, end, middle, own, title))
    step, spread = float(rows[0]["step"]), float(rows[0]["spread"])
    about = f"spread {spread:.2g}" if step == 1 else f"per {step:.3g}; spread {spread:.2g}"
    ticks = [(x(at), f"{np.exp(at) if odds else at:.2g}") for at in dict.fromkeys((low, 0.0, high))]
    return Plot(column, about, ticks, _TOP + _ROW * (len(rows) + 1), marks)


def _sentences(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return who is like whom, and how much evidence says so."""
    of = {row["institution"]: row["group"] for row in rows if row["own"]}
    ordered = sorted(of, key=lambda name: of[name])
    groups = {group: [*members] for group, members in groupby(ordered, key=lambda name: of[name])}
    alone = groups.pop("none", [])
    evidences = (rows[0].get("evidence") or "").split()
    by_number = ", ".join(f"{k}: {float(each):+.1f}" for k, each in enumerate(evidences))
    told = [f"Log evidence by number of groups: {by_number}."] if len(evidences) > 1 else []
    if not groups:
        return ["No group has evidence: each institution's coefficients are its own.", *told]
    many = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    members = "; ".join(", ".join(names) for names in groups.values())
    texts = [f"{many} of similar institutions: {members}."]
    if alone:
        texts.append(f"Like nobody: {', '.join(alone)}.")
    return texts + told
