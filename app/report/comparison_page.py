"""The page of a comparison: comparison.html, one file that opens offline and fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from app.config import schema
from app.config.keys import flatten
from app.config.registry import METHODS
from app.report import comparison, html, words
from app.report.comparison import Row
from app.report.comparison_data import page_data
from app.report.measures import Column
from app.runs import atomic, units


def write(rows: Sequence[Row], directory: Path, title: str) -> Path:
    """Write comparison.html into `directory`.

    Parameters
    ----------
    rows : what `comparison.rows` made, at least one, all methods over the same seeds.
    title : the page's heading.

    Returns
    -------
    path of the page.
    """
    target = directory / "comparison.html"
    atomic.write(target, render(rows, title))
    return target


def render(rows: Sequence[Row], title: str) -> str:
    """Return the page's HTML; every text that comes from a file is escaped."""
    return html.render("comparison.html.j2", **content(rows, title))


def content(rows: Sequence[Row], title: str) -> dict[str, Any]:
    """What the page says of a comparison."""
    columns = comparison.shown(rows)
    groups = [(name, list(of)) for name, of in groupby(columns, key=lambda column: column.group)]
    common = _common(rows)
    return {
        "title": title,
        "facts": _facts(rows),
        "notice": _notice(rows),
        "outcome": outcome(rows),
        "several": len(rows[0].runs) > 1,
        "groups": groups,
        "results": _results(rows, groups),
        "own": {row.method: _own(row, common) for row in rows},
        "tuned": {row.method: row.settings for row in rows if row.settings},
        "common": _in_tables(common),
        "data": page_data(rows),
    }


def outcome(rows: Sequence[Row]) -> str:
    """Say in a sentence which method came out best, and what it gains."""
    columns = {column.key: column for column in comparison.shown(rows)}
    main = columns.get("accuracy") or columns.get("loss")
    if main is None or not any(row.summary(main) for row in rows):
        return "There is nothing to compare yet."
    end = max if main.better == "high" else min
    means = {row.method: found[0] for row in rows if (found := row.summary(main))}
    top = next(row for row in rows if row.method == end(means, key=means.__getitem__))
    reached = comparison.cell(top, main)
    what = "mean test accuracy" if main.key == "accuracy" else "mean test loss"
    text = f"{top.method} reaches a {what} of {reached}"
    if len(means) > 1:
        superlative = "highest" if main.better == "high" else "lowest"
        text = f"Of {len(means)} methods, {top.method} reaches the {superlative} {what}, {reached}"
    text += " %" if main.key == "accuracy" else ""
    gain, improved = map(columns.get, ("gain", "improved"))
    if top.method != "local" and gain and improved and top.summary(gain):
        text += (
            f": {comparison.cell(top, gain)} points over local,"
            f" better for {improved.show((top.summary(improved) or (0.0, 0.0))[0])} % of the peers"
        )
    return text.replace(" %", "\u00a0%") + "."


def _facts(rows: Sequence[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    first = runs[0]
    seeds = [str(run.config.get("seed")) for run in rows[0].runs]
    rounds = first.config.get("num-server-rounds", first.rounds.max(initial=0))
    return [
        str(first.config.get("dataset", "unknown data")),
        *words.partition(first),
        words.peers(first),
        units.plural(len(rows), "method"),
        f"seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)}",
        units.plural(int(rounds), "round"),
        words.date(runs),
    ]


def _notice(rows: Sequence[Row]) -> str:
    runs = [run for row in rows for run in row.runs]
    unfinished = sum(run.progress.get("status") != "finished" for run in runs)
    if not unfinished:
        return ""
    text = f"{unfinished} of {units.plural(len(runs), 'run')} have not finished"
    return f"{text}; the numbers are those so far."


class Cell(NamedTuple):
    """A result as the table shows it, the number it sorts by, and its classes."""

    mean: str
    deviation: str
    value: float | None
    classes: str | None


def _results(
    rows: Sequence[Row], groups: Iterable[tuple[str, Sequence[Column]]]
) -> dict[str, list[Cell]]:
    """The cells of each method; the first column of a group starts it."""
    cells: dict[str, list[Cell]] = {row.method: [] for row in rows}
    for _, columns in groups:
        for column in columns:
            best = comparison.best(rows, column)
            for row in rows:
                marks = {"start": column is columns[0], "best": row.method in best}
                classes = " ".join(name for name, has in marks.items() if has) or None
                value = (row.summary(column) or (None,))[0]
                mean, _, deviation = comparison.cell(row, column).partition(" ± ")
                if value is None:
                    mean = units.NONE
                cells[row.method].append(Cell(mean, deviation, value, classes))
    return cells


def _common(rows: Sequence[Row]) -> dict[str, Any]:
    """Collect the keys, tables flattened, that all runs share with the same value."""
    first, *others = [flatten(dict(run.config)) for row in rows for run in row.runs]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
        and key not in ("method", "seed")
        and key.partition(".")[0] not in METHODS
    }


def _own(row: Row, common: Mapping[str, Any]) -> dict[str, str]:
    """Write the keys that a method does not share with all others as in a TOML file."""
    return {
        key: schema.written(value)
        for key, value in flatten(dict(row.runs[0].config)).items()
        if key not in common and key not in ("method", "seed")
    }


def _in_tables(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        table, _, inner = key.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[inner] = value
    return nested
