"""Coefficients of partial pooling: forest plots by column, groups of institutions in words."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from coterie.app.report.forest import Forest, Line
from coterie.app.report.section import Section
from coterie.app.runs import files
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.app.trained.coefficients import FILE

_SHOWN = 24
"""Maximum number of columns with a plot: those whose coefficients differ most from 0."""


@dataclass(frozen=True)
class Coefficients(Section):
    """Groups of institutions, and the coefficients of each column."""

    plots: Sequence[Forest]
    sentences: Sequence[str]
    left_out: int
    odds: bool  # coefficients are log odds

    template = "coefficients.html.j2"

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


def _plot(column: str, rows: Sequence[Mapping[str, str]], *, odds: bool) -> Forest:

    def show(value: float) -> str:
        return f"{np.exp(value) if odds else value:.3g}"

    lines = []
    for row in rows:
        estimate, low, high = (float(row[name]) for name in ("estimate", "low", "high"))
        number = f"{'odds ratio ' * odds}{show(estimate)}, 95 % {show(low)} to {show(high)}"
        own = float(row["own"]) if row["own"] else np.nan
        is_group, ends = not row["own"], (estimate, low, high)
        lines.append(Line(row["institution"], "", ends, number, is_mean=is_group, own=own))
    step, spread = float(rows[0]["step"]), float(rows[0]["spread"])
    about = f"spread {spread:.2g}" if step == 1 else f"per {step:.3g}; spread {spread:.2g}"
    return Forest(f"{column} ({about})", show, lines)


def _sentences(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return who is like whom, and how much evidence says so."""
    of = {row["institution"]: row["group"] for row in rows if row["own"]}
    ordered = sorted(of, key=lambda name: of[name])
    groups = {group: [*members] for group, members in groupby(ordered, key=lambda name: of[name])}
    alone = groups.pop("none", [])
    evidence = rows[0].get("evidence") or ""
    by_evidence = [f"Log evidence by number of groups: {evidence}."] if " " in evidence else []
    if not groups:
        return ["No group has evidence: each institution's coefficients are its own.", *by_evidence]
    many = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    members = "; ".join(", ".join(names) for names in groups.values())
    texts = [f"{many} of similar institutions: {members}."]
    if alone:
        texts.append(f"Like nobody: {', '.join(alone)}.")
    return texts + by_evidence
