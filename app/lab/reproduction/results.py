"""Results of a figure's runs: one number per seed, by panel, row, swept value and measure."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import NamedTuple

import numpy as np

from coterie.app.config.keys import ConfigError, nearest
from coterie.app.experiments.measures import deviation, known_mean, reached
from coterie.app.experiments.paired import split_ratio
from coterie.app.experiments.table import Table
from coterie.app.lab.reproduction import formulas
from coterie.app.lab.reproduction.figures import Figure
from coterie.app.lab.reproduction.measures import MEASURES, SHARES, graph_measure
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Floats, Run


def course(run: Run, name: str) -> tuple[Floats, Floats]:
    """Return (R,) rounds and (R,) a field's mean over peers, or a measure of the graph."""
    if name not in SHARES:
        return run.rounds.astype(np.float64), np.nanmean(run.metric(name), axis=1)
    values = [graph_measure(run, name, at) for at in range(len(run.weights))]
    return run.weight_rounds.astype(np.float64), np.array(values)


class Place(NamedTuple):
    """Place of a number in a figure, as in results.csv; `x` is "" without a sweep."""

    panel: str
    row: str
    x: str
    column: str


@dataclass(frozen=True)
class SeedNumbers:
    """Numbers of one place, one per seed, or per division of the data where seeds share one."""

    values: Mapping[str, float]
    closed_form: float = np.nan
    ratio: float = 0.0
    published: float | None = field(default=None, compare=False)  # the paper's number

    @property
    def known(self) -> list[float]:
        """Numbers of the seeds that have one; infinite if an event never came."""
        return [value for value in self.values.values() if not np.isnan(value)]

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN without numbers."""
        return known_mean([*self.values.values()])

    @property
    def deviation(self) -> float | None:
        """Sample deviation over the seeds; None if fewer than two have a finite number."""
        spreads = len(self.known) > 1 and np.isfinite(self.known).all()
        return deviation(self.known) if spreads else None

    @property
    def reached(self) -> str:
        """In how many seeds an event came, if not in all."""
        return reached(self.known)


@dataclass(frozen=True)
class Numbers:
    """Each seed's numbers of a figure: all that its claims are judged from."""

    places: Mapping[Place, SeedNumbers] = field(default_factory=dict)

    @classmethod
    def of(cls, figure: Figure, table: Table) -> Numbers:
        """Return the numbers of the figure's columns and of its claims' columns."""
        of_claims = [claim.column for claim in figure.claims if claim.kind != "undefined"]
        rows = {row.label: row for row in figure.rows}
        places = {}
        for cell, of in table.results.items():
            run, row = next(iter(of.values())), rows[cell.row]
            closed = formulas.PREDICTIONS[row.formula](run.config) if row.formula else np.nan
            x = "" if cell.x is None else str(cell.x)
            for column in dict.fromkeys([*figure.shown, *of_claims]):
                if column not in MEASURES:
                    raise ConfigError(f'unknown column "{column}"{nearest(column, MEASURES)}')
                values = {
                    str(split): float(np.nan if np.isnan(v_p).all() else np.nanmean(v_p))
                    for split, v_p in table.repeats(cell, MEASURES[column]).items()
                }
                published = row.printed(cell.panel, column)
                places[Place(cell.panel, cell.row, x, column)] = SeedNumbers(
                    values, closed, split_ratio(run), published
                )
        return cls(places)

    @classmethod
    def read(cls, text: str) -> Numbers:
        places = {}
        for line in csv.DictReader(StringIO(text)):
            place = Place(*(line.pop(key) for key in Place._fields))
            closed, ratio = (float(line.pop(key) or "nan") for key in _BESIDE)
            places[place] = SeedNumbers(
                {seed: float(value) for seed, value in line.items() if value}, closed, ratio
            )
        return cls(places)

    def as_csv(self) -> str:
        """Return seeds.csv: a line for each place, a column for each seed."""
        seeds = list(dict.fromkeys(seed for of in self.places.values() for seed in of.values))
        lines: list[tuple[object, ...]] = [(*Place._fields, *_BESIDE, *seeds)]
        for place, of in self.places.items():
            closed = "" if np.isnan(of.closed_form) else repr(of.closed_form)
            values = (repr(of.values[seed]) if seed in of.values else "" for seed in seeds)
            lines.append((*place, closed, repr(of.ratio), *values))
        return atomic.as_csv(lines)

    def at(self, panel: str, row: str, column: str, x: object = "") -> SeedNumbers:
        """Return the numbers of a place; without seeds if there are none."""
        return self.places.get(Place(panel, row, str(x), column), SeedNumbers({}))


_BESIDE = ("closed_form", "redivided")
"""Columns of seeds.csv between place and seeds."""


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
