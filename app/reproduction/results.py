"""Results of a figure's runs: one number, or one number per peer, by cell and trial."""

from __future__ import annotations

import numpy as np

from coterie.app.config.keys import ConfigError, nearest
from coterie.app.experiments.measures import MEASURES, SHARES, Column, graph_measure
from coterie.app.experiments.table import Cell, Table
from coterie.app.runs.rundir import Floats, Run


def course(run: Run, name: str) -> tuple[Floats, Floats]:
    """Return (R,) rounds and (R,) a field's mean over peers, or a measure of the graph."""
    if name not in SHARES:
        return run.rounds.astype(np.float64), np.nanmean(run.metric(name), axis=1)
    values = [graph_measure(run, at, name) for at in range(len(run.weights))]
    return run.weight_rounds.astype(np.float64), np.array(values)


class Results(Table):
    """The finished runs of a figure; repetitions are divisions of the data."""

    def of_trials(self, cell: Cell, column: str) -> Floats:
        """Return the measure of each trial, (T,), the mean over peers."""
        trials, known = self.results.get(cell, {}), measure(column)
        values = [self.peers(cell, trial, known) for trial in trials]
        return np.array([np.nanmean(v) if not np.isnan(v).all() else np.nan for v in values])

    def mean(self, cell: Cell, column: str) -> float:
        """Return the mean over trials; NaN without trials."""
        values = self.of_trials(cell, column)
        return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else np.nan


def measure(column: str) -> Column:
    """Return the measure of a column."""
    if column not in MEASURES:
        raise ConfigError(f'unknown column "{column}"{nearest(column, MEASURES)}')
    return MEASURES[column]


def title_of(column: str) -> str:
    """Return the title of a measure, or of a field of metrics.jsonl."""
    return _title(column).removesuffix(" %")


def _title(column: str) -> str:
    return MEASURES[column].title if column in MEASURES else column.replace("_", " ")


def better_of(column: str) -> str:
    """Return which end of a column is better: "high", "low" or ""."""
    return "low" if column.endswith("_loss") else MEASURES[column].better


def is_share(column: str) -> bool:
    """Return whether a column is a share, shown in per cent."""
    return column.endswith("_accuracy") or column == "gain" or _title(column).endswith("%")
