"""Verdict of a comparison: the best method if a test supports one, and footnotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.config.registry import YARDSTICKS
from coterie.app.report import comparison, methods
from coterie.app.report.comparison import Row
from coterie.app.report.measures import Column
from coterie.app.report.paired_test import LEVEL, MIN_SEEDS, p_value, redivision
from coterie.app.runs import summary, units

_MAX_NAMES = 4


def outcome(rows: Sequence[Row]) -> str:
    """Name the best method if the paired test supports it, else those it cannot separate.

    References are not ranked. Neither is a method that diverged, if there is no accuracy.
    """
    columns = {column.key: column for column in comparison.shown(rows)}
    main = columns.get("accuracy") or columns.get("loss")
    sentences = [] if main is None else [*_at_home(rows, main), *_ranking(rows, main, columns)]
    if main is not None and not comparison.have_same_data(rows):
        sentences.append("Not ranked, because the peers have different data")
    lost = [f"{row.name} ({row.diverged} of {row.peers} peers)" for row in rows if row.diverged]
    if lost:
        sentences.append(f"Diverged: {', '.join(lost)}")
    return " ".join(f"{each}." for each in sentences) or "There is nothing to compare yet."


def _at_home(rows: Sequence[Row], main: Column) -> list[str]:
    """Say that no method beats a plain model of each peer alone, if none does."""
    models = {"logistic": "logistic regression", "ridge": "ridge regression"}
    plain = next((row for row in rows if row.method in models and row.summary(main)), None)
    ranked = comparison.leading(rows, main)
    if plain is None or not ranked:
        return []
    best, alone, unit = ranked[0], plain.by_seed(main), "\u00a0%" * (main.key == "accuracy")
    sign = 1.0 if main.better == "high" else -1.0
    ahead = [sign * (of - alone[seed]) for seed, of in best.by_seed(main).items() if seed in alone]
    if not ahead:
        return []
    model = f"plain {models[plain.method]} by each peer alone"
    values = [f"{comparison.cell(row, main)}{unit}" for row in (plain, best)]
    if np.mean([np.nanmean(of_p) for of_p in ahead]) <= 0:
        return [
            f"{model.capitalize()} is as good as the best method, {best.name}: "
            f"{values[0]} against {values[1]}"
        ]
    if p_value(ahead, redivision(flatten(best.runs[0].config))) <= LEVEL:
        return []
    return [
        f"The best method, {best.name}, is not significantly better than {model}: "
        f"{values[1]} against {values[0]} with {units.plural(len(ahead), 'seed')}"
    ]


def _ranking(rows: Sequence[Row], main: Column, columns: Mapping[str, Column]) -> list[str]:
    """Return sentences on the leading methods and the references in the main column."""
    what, unit = "mean test loss", ""
    if main.key == "accuracy":
        what, unit = "mean test accuracy", "\u00a0%"
    end = "highest" if main.better == "high" else "lowest"
    among, leading = comparison.candidates(rows, main), comparison.leading(rows, main)
    sentences = []
    if leading:
        top = leading[0]
        value = f"{comparison.cell(top, main)}{unit}{_gain(top, columns)}"
        rivals = units.plural(len(among), comparison.noun(rows))
        seeds = units.plural(len(top.runs), "seed")
        untested = " (no test possible)" if len(top.runs) < MIN_SEEDS else ""
        why = f"not significant with {seeds}{untested}"
        if len(among) == 1:
            sentences.append(f"{top.name} reaches a {what} of {value}")
        elif len(leading) == 1:
            sentences.append(
                f"{top.name} is the best of {rivals} (paired test over {seeds} and "
                f"their peers): {what} {value}"
            )
        else:
            names = _listed([row.name for row in leading])
            sentences.append(f"No clear winner among {names}: {why}")
            sentences.append(f"{top.name} has the {end} {what}: {value}")
    return sentences + [
        f"{row.name}, which {row.reference}, reaches {comparison.cell(row, main)}{unit}"
        for row in rows
        if row.reference and row.summary(main) and row.runs[0].config["method"] not in YARDSTICKS
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the footnotes of the table."""
    footnotes = []
    if comparison.noun(rows) == "setting" and comparison.have_same_data(rows):
        footnotes.append(
            "a setting that is chosen by these results is tuned on test data; compare --tune "
            "chooses on validation data"
        )
    references: dict[str, list[str]] = {}
    for row in rows:
        if row.reference:
            references.setdefault(row.reference, []).append(row.name)
    if references:
        each = [
            f"{_listed(names)} {why if len(names) == 1 else why.replace('is ', 'are ', 1)}"
            for why, names in references.items()
        ]
        footnotes.append(f"* not ranked: {'; '.join(each)}")
    edges = [
        f"{row.name} ({key} = {schema.written(row.choice.settings[key])}, {row.choice.edge(key)})"
        for row in rows
        for key in row.choice.edges
    ]
    if edges:
        footnotes.append(f"tuned to the edge of the range, try values beyond: {', '.join(edges)}")
    if any(summary.privacy(row.runs[0]) for row in rows):
        footnotes.append(summary.spent_below(rows[0].runs[0].directory.parent))
    return footnotes


def cost_notes(rows: Sequence[Row]) -> list[str]:
    """Return the footnotes of the costs: bytes, machines of the seconds, joules."""
    keys = {column.key for column in comparison.shown(rows)}
    broadcasts: dict[str, list[str]] = {}
    for row in rows:
        if caption := methods.all_to_all(row.runs[0].config):
            broadcasts.setdefault(caption, []).append(row.name)
    footnotes = [f"{', '.join(names)}: {caption}" for caption, names in broadcasts.items()]
    if "bytes" in keys and "bytes_received" not in keys:
        footnotes.append("received: on average as many bytes as sent")
    if "seconds" in keys:
        names = [run.progress.get("machine") for row in rows for run in row.runs]
        machines = list(dict.fromkeys(filter(None, names)))
        where = f" on {_listed(machines)}" if machines else ""
        footnotes.append(f"seconds: wall time of a run{where}; runs in parallel share the machine")
    if "joules" in keys:
        footnotes.append(
            "joules: energy of all processors of the machine during a run, other programs included"
        )
    return footnotes


def _gain(row: Row, columns: Mapping[str, Column]) -> str:
    gain, improved = map(columns.get, ("gain", "improved"))
    if row.is_local or not gain or not improved or row.summary(gain) is None:
        return ""
    share = improved.show((row.summary(improved) or (0.0, 0.0))[0])
    return f", {comparison.cell(row, gain)} points over local; {share}\u00a0% of the peers improve"


def _listed(names: Sequence[str]) -> str:
    """Write "a, b and c", or "a, b, c and 5 others"."""
    shown = [*names]
    if len(names) > _MAX_NAMES + 1:
        shown[_MAX_NAMES:] = [f"{len(names) - _MAX_NAMES} others"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
