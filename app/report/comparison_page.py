"""Page of a comparison: comparison.html, which opens offline and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.config.registry import METHODS
from coterie.app.config.settings import ambiguous
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.table import Row
from coterie.app.report import (
    by_peer,
    comparison,
    comparison_figures,
    decisions,
    diagnostics,
    risks,
    section,
    words,
)
from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Page, Section, Sections
from coterie.app.runs import units
from coterie.app.runs.progress import OVER


@dataclass(frozen=True)
class Settings(Section):
    """Settings of the rows: those of their own, the tuned ones, and those in common."""

    own: Mapping[str, Mapping[str, str]]
    tuned: Mapping[str, Choice]
    trials: str
    common: Mapping[str, Any]

    template = "settings.html.j2"

    @classmethod
    def of(cls, compared: Comparison) -> Settings:
        rows = compared.table.rows
        common = _common(rows)
        counts = sorted({row.choice.trials for row in rows if row.choice.settings})
        ends = sorted({*counts[:1], *counts[-1:]})  # they differ if trials failed
        trials = " to ".join(map(str, ends)) + (" trial" if ends == [1] else " trials")
        return cls(
            {row.method: _own(row, common) for row in rows},
            {row.method: row.choice for row in rows if row.choice.settings},
            trials,
            _in_tables(common),
        )


SECTIONS: Sections[Comparison] = (
    decisions.compared,
    comparison.results,
    comparison.costs,
    comparison_figures.curves,
    comparison_figures.gain_dots,
    risks.risks,
    by_peer.compared,
    diagnostics.compared,
    comparison_figures.maps,
    Settings.of,
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
        "noun": compared.table.noun,
        "labels": {row.method: row.label for row in rows},
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
            f"{unfinished} of {every} have not finished; the page shows their rounds so far."
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


def _own(row: Row, common: Mapping[str, Any]) -> dict[str, str]:
    """Write the keys that were tuned or that not all methods share, as in a TOML file."""
    return {
        key: schema.written(value)
        for key, value in flatten(dict(row.runs[0].config)).items()
        if (key not in common or key in row.choice.settings) and key not in ("method", "seed")
    }


def _in_tables(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables: the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        table, _, inner = key.rpartition(".")
        if table and table not in ambiguous():
            nested.setdefault(table, {})[inner] = value
        else:
            nested[key] = value
    return nested
