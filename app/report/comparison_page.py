"""Write the page of a comparison: comparison.html, which opens offline and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.config.registry import METHODS, YARDSTICKS
from coterie.app.config.settings import ambiguous
from coterie.app.experiments.measures import COST, Column
from coterie.app.experiments.paired import MIN_SEEDS
from coterie.app.experiments.table import Row, Table
from coterie.app.report import by_peer, decisions, diagnostics, html, verdict, words
from coterie.app.report.comparison_data import page_data, seeds_of
from coterie.app.runs import atomic, units
from coterie.app.runs.progress import OVER


def write(
    table: Table,
    directory: Path,
    title: str,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write comparison.html into `directory`, that of the comparison, and return its path.

    The table has at least one row; `title` is the preset or directory; `failed`: run -> error, no
    row contains such a run.
    """
    target = directory / "comparison.html"
    atomic.write(target, html.render("comparison.html.j2", **content(table, title, failed)))
    return target


def content(table: Table, title: str, failed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that fill the page's template."""
    columns, rows = table.shown(), table.rows
    groups = [(name, list(of)) for name, of in groupby(columns, key=lambda column: column.group)]
    quality = [each for each in groups if each[0] != COST]
    main = [column for column in columns if column.key in ("accuracy", "loss")][:1]
    costs = [*(("", [column]) for column in main), *groups[len(quality) :]]
    common = _common(rows)
    return {
        "title": _heading(rows),
        "name": title,
        "facts": _facts(table),
        "notice": _notice(rows, failed),
        "outcome": verdict.outcome(table),
        "decisions": decisions.compared(table),
        "notes": verdict.notes(table),
        "failed": failed,
        "several": any(len(row.runs) > 1 for row in rows),
        "significance": _significance(table, columns),
        "noun": table.noun,
        "labels": {row.method: row.label for row in rows},
        "results": _table(table, quality),
        "costs": _table(table, costs),
        "cost_notes": verdict.cost_notes(table),
        "by_peer": by_peer.table(table),
        "diagnostics": diagnostics.compared(table),
        "own": {row.method: _own(row, common) for row in rows},
        "tuned": {row.method: row.choice for row in rows if row.choice.settings},
        "trials": _trials(rows),
        "common": _in_tables(common),
        "data": page_data(table),
    }


def _heading(rows: Sequence[Row]) -> str:
    """Return the key `title`, else "local, cobo on digits", "23 methods on digits" and so on."""
    if chosen := str(rows[0].runs[0].config.get("title") or ""):
        return chosen
    methods = list(dict.fromkeys(key for row in rows for key in row.swept))
    methods = methods or [row.name for row in _methods(rows)]
    subject = ", ".join(methods) if len(methods) <= 4 else units.plural(len(methods), "method")
    return f"{subject} on {words.data_name(rows[0].runs[0].config)}"


def _methods(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are no yardsticks by scikit-learn; all rows if each is one."""
    return [row for row in rows if row.runs[0].config["method"] not in YARDSTICKS] or list(rows)


def _facts(table: Table) -> list[str]:
    rows = table.rows
    runs = [run for row in rows for run in row.runs]
    first = runs[0]
    seeds = [str(seed) for seed in seeds_of(rows)]
    rounds = first.config.get("num-server-rounds", first.rounds.max(initial=0))
    return [
        *words.partition(first),
        words.peers(first),
        units.plural(len(_methods(rows)), table.noun),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}",
        units.plural(int(rounds), "round"),
        words.date(runs),
    ]


def _notice(rows: Sequence[Row], failed: Mapping[str, str]) -> str:
    runs = [run for row in rows for run in row.runs]
    unfinished = sum(run.progress.get("status") not in OVER for run in runs)
    every = units.plural(len(runs) + len(failed), "run")
    sentences = []
    if failed:
        sentences.append(f"{len(failed)} of {every} failed: see below.")
    if unfinished:
        sentences.append(
            f"{unfinished} of {every} have not finished; the page shows their rounds so far."
        )
    return " ".join(sentences)


def _significance(table: Table, columns: Sequence[Column]) -> str:
    """Explain the meaning of bold, or why nothing is bold."""
    seeds = max(len(row.runs) for row in table.rows)
    if table.divisions < MIN_SEEDS:
        count = units.plural(seeds, "seed")
        if table.divisions < seeds:
            count += f" of {units.plural(table.divisions, 'division')} of the data (split-seed)"
        return f"No difference is significant with {count} (no test possible)."
    if any(table.bold(column) for column in columns):
        return (
            "Bold: the best mean of a column, and means that are not significantly worse (paired "
            "test over seeds and peers)."
        )
    return f"No difference is significant with {seeds} seeds (paired test over seeds and peers)."


def _trials(rows: Sequence[Row]) -> str:
    """Write the number of trials that tuning chose from: one number, unless trials failed."""
    counts = sorted({row.choice.trials for row in rows if row.choice.settings})
    return " to ".join(map(str, sorted({*counts[:1], *counts[-1:]}))) + " trials"


class Cell(NamedTuple):
    """Cell of a table: formatted mean and deviation, sort value, CSS classes."""

    mean: str
    deviation: str
    value: float | None
    classes: str | None


def _table(table: Table, groups: Sequence[tuple[str, Sequence[Column]]]) -> dict[str, Any]:
    """Return the groups of columns of a table, and the cells of each method.

    The first column of a group has the class "start".
    """
    cells: dict[str, list[Cell]] = {row.method: [] for row in table.rows}
    for _, columns in groups:
        for column in columns:
            for method, entry in table.entries(column).items():
                marks = {"start": column is columns[0], "best": entry.leads}
                classes = " ".join(name for name, has in marks.items() if has) or None
                mean = units.NONE if entry.text == table.dash else entry.mean
                cells[method].append(Cell(mean, entry.deviation, entry.value, classes))
    return {"groups": groups, "cells": cells}


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
