"""Page of a comparison: comparison.html, which opens offline and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.config.registry import METHODS
from coterie.app.experiments.paired import split_ratio
from coterie.app.experiments.table import Row
from coterie.app.report import (
    by_peer,
    comparison,
    comparison_figures,
    decisions,
    diagnostics,
    section,
    words,
)
from coterie.app.report.comparison import Comparison
from coterie.app.report.panel import Cell, Heading, Panel
from coterie.app.report.section import Page, Sections
from coterie.app.runs import units
from coterie.app.runs.progress import OVER


def settings(compared: Comparison) -> Panel:
    """Return the settings that rows do not share, those that tuning chose, and the common ones."""
    rows, about = compared.table.rows, "Settings that the rows do not share."
    common, titles = _common(rows), ["settings"]
    if trials := {row.choice.trials for row in rows if row.choice.settings}:
        titles.append("tuned")
        counts = " to ".join(map(str, sorted({min(trials), max(trials)})))  # some may have failed
        is_retested = compared.has_several and split_ratio(compared.runs[0])
        retested = ", but other seeds test some of these validation rows" if is_retested else ""
        about += (
            " Tuned: chosen on validation data of the first seed, from the same learning rates and "
            f"{counts} trials for each method; its test data decided nothing{retested}. “Lowest "
            "tried” and “highest tried”: a better value may lie beyond."
        )
    cells = [(row.label, (_own(row, common), row.choice.described())) for row in rows]
    return Panel(
        "settings", "Settings", [about],
        [Heading(compared.table.noun), *(Heading(title, mark="text") for title in titles)],
        [(name, [Cell(text or units.NONE, mark="text") for text in of[: len(titles)]])
         for name, of in cells],
        lists={"Common settings": [f"{k} = {schema.written(v)}" for k, v in common.items()]},
    )  # fmt: skip


SECTIONS: Sections[Comparison] = (
    decisions.compared,
    comparison.results,
    comparison.costs,
    comparison_figures.curves,
    comparison_figures.gain_dots,
    comparison_figures.risks,
    by_peer.compared,
    diagnostics.compared,
    comparison_figures.maps,
    settings,
)
"""Sections in the order of the page."""


def page(compared: Comparison) -> Page:
    """Return the page of a comparison."""
    rows, sections = compared.table.rows, section.made(SECTIONS, compared)
    advised = next((each for each in sections if isinstance(each, decisions.Decisions)), None)
    values = {
        "title": comparison.heading(rows),
        "name": compared.title,
        "facts": _facts(compared),
        "notice": _notice(compared),
        "outcome": advised.consortium if advised else compared.outcome[0],
        "several": compared.has_several,
        "data": {**comparison_figures.EMPTY, **comparison_figures.common_data(compared)},
    }
    return Page("comparison.html", "comparison.html.j2", values, sections)


def _facts(compared: Comparison) -> list[str]:
    first, seeds = compared.runs[0], [str(seed) for seed in compared.seeds]
    return [
        *words.partition(first),
        words.peers(first),
        units.plural(len(comparison.methods(compared.table.rows)), compared.table.noun),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}",
        units.plural(first.settings.num_server_rounds, "round"),
        words.date(compared.runs),
    ]


def _notice(compared: Comparison) -> str:
    unfinished = sum(run.progress.get("status") not in OVER for run in compared.runs)
    failed = len(compared.failed)
    every = units.plural(len(compared.runs) + failed, "run")
    sentences = [f"{failed} of {every} failed: see below."] * (failed > 0)
    if unfinished:
        sentences.append(
            f"Not finished: {unfinished} of {every}; the page shows their rounds so far."
        )
    return " ".join(sentences)


def _common(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the flat keys that have the same value in all runs."""
    first, *others = [flatten(dict(run.config)) for row in rows for run in row.runs]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
        and key not in ("method", "seed")
        and not ("." in key and key.partition(".")[0] in METHODS)
    }


def _own(row: Row, common: Mapping[str, Any]) -> str:
    """Write the keys that not all rows share, without the tuned ones."""
    return ", ".join(
        f"{key} = {schema.written(value)}"
        for key, value in flatten(dict(row.runs[0].config)).items()
        if key not in common and key not in row.choice.settings and key not in ("method", "seed")
    )
