"""Verdict of a comparison: the best method if a test supports one, and footnotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.config.registry import YARDSTICKS
from coterie.app.experiments import methods
from coterie.app.experiments.measures import Column
from coterie.app.experiments.paired import LEVEL, MIN_SEEDS, p_value, split_ratio
from coterie.app.experiments.table import Row, Table
from coterie.app.report.words import unjudged
from coterie.app.runs import summary, units
from coterie.datasets.own.institutions import listed


def outcome(table: Table) -> list[str]:
    """Name the best ranked method if the paired test supports it, else those it cannot separate."""
    columns, rows = {column.key: column for column in table.shown()}, table.rows
    main = table.main
    sentences = [] if main is None else [*_at_home(table, main), *_ranking(table, main, columns)]
    if main is not None and not table.has_same_data:
        sentences.append("Not ranked, because the peers have different data")
    lost = [f"{row.name} ({row.diverged} of {row.peers} peers)" for row in rows if row.diverged]
    if lost:
        sentences.append(f"Diverged: {', '.join(lost)}")
    return [f"{each}." for each in sentences] or ["There is nothing to compare yet."]


def _at_home(table: Table, main: Column) -> list[str]:
    """Say that no method beats a plain model of each peer alone, if none does."""
    models = {"logistic": "logistic regression", "ridge": "ridge regression"}
    plain = next((row for row in table.rows if row.method in models and row.summary(main)), None)
    ranked = table.leading(main)
    if plain is None or not ranked:
        return []
    best, alone, unit = ranked[0], plain.repeats(main), "\u00a0%" * (main.key == "accuracy")
    sign = 1.0 if main.better == "high" else -1.0
    ahead = [sign * (of - alone[seed]) for seed, of in best.repeats(main).items() if seed in alone]
    if not ahead or (
        np.mean([np.nanmean(of_p) for of_p in ahead]) > 0
        and p_value(ahead, split_ratio(best.runs[0])) <= LEVEL
    ):
        return []
    return [
        f"The best method, {best.name}, is not significantly better than plain "
        f"{models[plain.method]} by each peer alone: {best.text(main)}{unit} against "
        f"{plain.text(main)}{unit} with {_seeds(best, [plain], main)}"
    ]


def _seeds(top: Row, others: Sequence[Row], main: Column) -> str:
    """Write the number of seeds of a row, and whether no test against another is possible."""
    common = [top.repeats(main).keys() & other.repeats(main).keys() for other in others]
    untested = " (no test possible)" * any(len(each) < MIN_SEEDS for each in common)
    return units.plural(len(top.runs), "seed") + untested


def _ranking(table: Table, main: Column, columns: Mapping[str, Column]) -> list[str]:
    """Return sentences on the leading methods and the references in the main column."""
    titles = {"accuracy": "mean test accuracy", "auroc": "mean AUROC", "rmse": "mean RMSE"}
    what, unit = titles.get(main.key, "mean test loss"), "\u00a0%" * (main.key == "accuracy")
    end = "highest" if main.better == "high" else "lowest"
    among, leading = table.candidates(main), table.leading(main)
    sentences = []
    if leading:
        top = leading[0]
        value = f"{top.text(main)}{unit}{_gain(top, columns) if main.key != 'auroc' else ''}"
        rivals, seeds = units.plural(len(among), table.noun), _seeds(top, leading[1:], main)
        if len(among) == 1:
            sentences.append(f"{top.name} reaches a {what} of {value}")
        elif len(leading) == 1:
            sentences.append(
                f"{top.name} is the best of {rivals} (paired test over {seeds} and "
                f"their peers): {what} {value}"
            )
        else:
            names = listed([row.name for row in leading])
            sentences.append(f"No clear winner among {names}: not significant with {seeds}")
            sentences.append(f"{top.name} has the {end} {what}: {value}")
    return sentences + [
        f"{row.name}, which {row.reference}, reaches {row.text(main)}{unit}"
        for row in table.rows
        if row.reference and row.summary(main) and row.settings.method not in YARDSTICKS
    ]


def notes(table: Table) -> list[str]:
    """Return the footnotes of the table."""
    footnotes, rows = [], table.rows
    seeds = max(len(row.runs) for row in rows)
    if without := unjudged(rows[0].runs[0]):
        footnotes.append(f"means are over all peers, also those that cannot be judged: {without}")
    if fewer := [f"{row.name} {len(row.runs)}" for row in rows if len(row.runs) < seeds]:
        footnotes.append(f"means are over fewer than {seeds} seeds: {', '.join(fewer)}")
    divisions = len({trial.split for of in table.results.values() for trial in of})
    if divisions < seeds:
        count = units.plural(divisions, "division")
        footnotes.append(
            f"the seeds share {count} of the data (split-seed), so the test counts divisions: what "
            "differs may differ on these rows only"
        )
    if table.noun == "setting" and table.has_same_data:
        footnotes.append(
            "a setting that is chosen by these results is tuned on test data; compare --tune "
            "chooses on validation data"
        )
    if flatten(rows[0].runs[0].config).get("table.scale") == "common":
        footnotes.append(
            "numbers are on the common scale, also those of peers that train alone; an "
            "institution that stays out has its own only (table.scale)"
        )
    footnotes += _rounds(table)
    references: dict[str, list[str]] = {}
    for row in rows:
        if row.reference:
            references.setdefault(row.reference, []).append(row.name)
    if references:
        each = [
            f"{listed(names)} {why if len(names) == 1 else why.replace('is ', 'are ', 1)}"
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


def _rounds(table: Table) -> list[str]:
    """Say which rows stopped early (`patience`), and whether the rows' numbers of rounds differ."""
    planned = {row.name: row.settings.num_server_rounds for row in table if row.runs}
    notes = []
    if len({*planned.values()}) > 1:
        each = [f"{name} {rounds}" for name, rounds in planned.items()]
        notes.append(f"not the same number of rounds: {', '.join(each)}")
    stopped = []
    for row in table:
        ended = [run.progress for run in row.runs if run.progress.get("status") == "finished"]
        ends = [int(progress["round"]) for progress in ended if "round" in progress]
        if any(end < planned[row.name] for end in ends):
            counts = listed([str(end) for end in sorted({*ends})])
            stopped.append(f"{row.name} after {counts} of {planned[row.name]} rounds")
    if stopped:
        notes.append(f"stopped early (patience): {'; '.join(stopped)}")
    return notes


def cost_notes(table: Table) -> list[str]:
    """Return the footnotes of the costs: bytes, machines of the seconds."""
    keys, rows = {column.key for column in table.shown()}, table.rows
    broadcasts: dict[str, list[str]] = {}
    for row in rows:
        if caption := methods.all_to_all(row.settings):
            broadcasts.setdefault(caption, []).append(row.name)
    footnotes = [f"{', '.join(names)}: {caption}" for caption, names in broadcasts.items()]
    if "bytes" in keys and "bytes_received" not in keys:
        footnotes.append("received: on average as many bytes as sent")
    if "seconds" in keys:
        names = [run.progress.get("machine") for row in rows for run in row.runs]
        machines = list(dict.fromkeys(filter(None, names)))
        where = f" on {listed(machines)}" if machines else ""
        footnotes.append(f"seconds: wall time of a run{where}; runs in parallel share the machine")
    return footnotes


def _gain(row: Row, columns: Mapping[str, Column]) -> str:
    gain, improved = map(columns.get, ("gain", "improved"))
    if row.is_local or not gain or not improved or row.summary(gain) is None:
        return ""
    share = improved.show((row.summary(improved) or (0.0, 0.0))[0])
    return f", {row.text(gain)} points over local; {share}\u00a0% of the peers improve"
