"""Verdict of a comparison in words: the best method, if a test supports one, and footnotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.app.config import schema
from coterie.app.report import comparison, methods
from coterie.app.report.comparison import Row
from coterie.app.report.measures import Column
from coterie.app.report.paired_test import MIN_SEEDS
from coterie.app.runs import units

_NAMED = 4


def outcome(rows: Sequence[Row]) -> str:
    """Say which method is best where the paired test supports it; else who may be.

    A method that was told the true clusters is no candidate, and neither is one that diverged where
    there is only a loss.
    """
    columns = {column.key: column for column in comparison.shown(rows)}
    main = columns.get("accuracy") or columns.get("loss")
    said = [] if main is None else _reached(rows, main, columns)
    lost = [f"{row.method} ({row.diverged} of {row.peers} peers)" for row in rows if row.diverged]
    if lost:
        said.append(f"Diverged: {', '.join(lost)}")
    return " ".join(f"{sentence}." for sentence in said) or "There is nothing to compare yet."


def _reached(rows: Sequence[Row], main: Column, columns: Mapping[str, Column]) -> list[str]:
    """What the leading methods reach in the main column, and what yardsticks do."""
    what, unit = "mean test loss", ""
    if main.key == "accuracy":
        what, unit = "mean test accuracy", "\u00a0%"
    end = "highest" if main.better == "high" else "lowest"
    among, leading = comparison.candidates(rows, main), comparison.leading(rows, main)
    said = []
    if leading:
        top = leading[0]
        reached = f"{comparison.cell(top, main)}{unit}{_gain(top, columns)}"
        seeds = units.plural(len(top.runs), "seed")
        untested = " (no test possible)" if len(top.runs) < MIN_SEEDS else ""
        why = f"not significant with {seeds}{untested}"
        if len(among) == 1:
            said.append(f"{top.method} reaches a {what} of {reached}")
        elif len(leading) == 1:
            said.append(
                f"{top.method} is the best of {len(among)} methods (paired test over {seeds} and "
                f"their peers): a {what} of {reached}"
            )
        else:
            names = _listed([row.method for row in leading])
            said.append(f"No clear winner among {names}: {why}")
            said.append(f"The {end} {what} is {top.method}’s, {reached}")
    return said + [
        f"The yardstick {row.method}, which is told the true clusters, reaches "
        f"{comparison.cell(row, main)}{unit}"
        for row in rows
        if row.is_yardstick and row.summary(main)
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """Explain what a reader of the table needs to know."""
    said = []
    if any(row.is_yardstick for row in rows):
        told = _listed([row.method for row in rows if row.is_yardstick])
        said.append(f"* a yardstick: {told} is told the true clusters, so it is not ranked")
    broadcasts: dict[str, list[str]] = {}
    for row in rows:
        if caption := methods.all_to_all(row.runs[0].config):
            broadcasts.setdefault(caption, []).append(row.method)
    said += [f"{', '.join(named)}: {caption}" for caption, named in broadcasts.items()]
    edges = [
        f"{row.method} ({key} = {schema.written(row.choice.settings[key])}, {row.choice.edge(key)})"
        for row in rows
        for key in row.choice.edges
    ]
    if edges:
        said.append(f"tuned to an edge, a better value may lie beyond it: {', '.join(edges)}")
    return said


def _gain(row: Row, columns: Mapping[str, Column]) -> str:
    gain, improved = map(columns.get, ("gain", "improved"))
    if row.method == "local" or not gain or not improved or row.summary(gain) is None:
        return ""
    share = improved.show((row.summary(improved) or (0.0, 0.0))[0])
    return (
        f", {comparison.cell(row, gain)} points over local, better for {share}\u00a0% of the peers"
    )


def _listed(names: Sequence[str]) -> str:
    """Write "a, b and c", or "a, b, c and 5 others"."""
    shown = [*names]
    if len(names) > _NAMED + 1:
        shown[_NAMED:] = [f"{len(names) - _NAMED} others"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
