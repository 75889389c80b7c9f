"""Results of a figure's runs: one number, or one number a peer, by panel, row, x and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.app.config.keys import ConfigError, nearest
from coterie.app.config.schema import Scalar
from coterie.app.report.measures import COLUMNS, last
from coterie.app.runs.rundir import Floats, Run

BETTER = {column.key: column.better for column in COLUMNS}
_TITLES = {column.key: column.title for column in COLUMNS}
_FIELDS = {
    "train_accuracy": "train accuracy",
    "train_loss": "train loss",
    "test_loss": "test loss",
    "validation_accuracy": "validation accuracy",
    "virtual_seconds": "virtual seconds",
}
"""Fields of metrics.jsonl that are measures of a figure without being columns of a comparison."""
EXTRA: dict[str, tuple[str, str, Callable[[Run], float]]] = {}
"""Further measures: key -> (title, which end is better, run -> number). See `measure`."""


def measure(key: str, title: str, better: str = "") -> Callable[..., Callable[[Run], float]]:
    """Add a measure of figures, by decorator."""

    def add(function: Callable[[Run], float]) -> Callable[[Run], float]:
        EXTRA[key] = title, better, function
        return function

    return add


@measure("stationary_loss", "stationary loss", "low")
def stationary_loss(run: Run) -> float:
    """Return the mean test loss over peers and the last three fifths of the recorded rounds."""
    loss_rn = run.metric("test_loss")
    return float(np.nanmean(loss_rn[2 * len(loss_rn) // 5 :]))


class Place(NamedTuple):
    """Where a run stands in a figure: panel and row by label, and the swept value or None."""

    panel: str
    row: str
    x: Scalar | None


@dataclass(frozen=True)
class Results:
    """The finished runs of a figure.

    Attributes
    ----------
    runs : place -> seed -> run.
    """

    runs: Mapping[Place, Mapping[int, Run]]

    def of_peers(self, place: Place, column: str) -> dict[int, Floats]:
        """Return seed -> (n,) the measure of each peer; (1,) where it is one number of a run."""
        return {seed: self._peers(place, seed, column) for seed in self.runs.get(place, {})}

    def of_seeds(self, place: Place, column: str) -> Floats:
        """Return (S,) the measure of each seed's run, the mean over peers."""
        values = self.of_peers(place, column).values()
        return np.array([np.nanmean(v) if not np.isnan(v).all() else np.nan for v in values])

    def mean(self, place: Place, column: str) -> float:
        """Return the mean over seeds; NaN where there is none."""
        values = self.of_seeds(place, column)
        return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else np.nan

    def _peers(self, place: Place, seed: int, column: str) -> Floats:
        run = self.runs[place][seed]
        if column in EXTRA:
            return np.array([EXTRA[column][2](run)])
        if column in _FIELDS:
            return last(run, column)
        for known in COLUMNS:
            if known.key == column:
                if column in ("gain", "loss_gain", "improved", "harmed") or known.of_peers is None:
                    value = known.of(run, self._beside(place, seed))
                    return np.array([np.nan if value is None else value])
                return known.of_peers(run)
        raise ConfigError(f'unknown column "{column}"{nearest(column, [*BETTER, *_FIELDS])}')

    def _beside(self, place: Place, seed: int) -> dict[str, Run]:
        """Return the runs of the same panel, x and seed by method."""
        return {
            str(of[seed].config["method"]): of[seed]
            for other, of in self.runs.items()
            if (other.panel, other.x) == (place.panel, place.x) and seed in of
        }


def title_of(column: str) -> str:
    """Return what people call a column."""
    if column in EXTRA:
        return EXTRA[column][0]
    return _FIELDS.get(column) or _TITLES[column].removesuffix(" %")


def better_of(column: str) -> str:
    """Return which end of a column is better: "high", "low" or ""."""
    if column in EXTRA:
        return EXTRA[column][1]
    if column.endswith("_loss"):
        return "low"
    return BETTER.get(column, "high")


def is_share(column: str) -> bool:
    """Return whether a column is a share, shown in per cent."""
    return column.endswith("_accuracy") or _TITLES.get(column, "").endswith("%") or column == "gain"
