"""A table of runs: results by cell and trial; bold leads by the test of `experiments.paired`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import (
    COLUMNS,
    COST,
    MEASURES,
    Column,
    SameTrial,
    deviation,
    reached,
)
from coterie.app.experiments.methods import reference
from coterie.app.experiments.paired import leaders, split_ratio
from coterie.app.runs import plan
from coterie.app.runs.quality import rare_class
from coterie.app.runs.rundir import Floats, Run
from coterie.app.runs.settings import RunSettings
from coterie.strategies.names import display

LOSSES = ("loss", "loss_gain", "rmse")


class Cell(NamedTuple):
    """Place in a table: row, panel ("" for the only one), and position on an axis or None."""

    row: str
    panel: str = ""
    x: Scalar | None = None


class Trial(NamedTuple):
    """A repetition: the seed that divided the data, and that of all else."""

    split: Any
    seed: Any

    @classmethod
    def of(cls, run: Run) -> Trial:
        seed, split = run.settings.seed, run.settings.split_seed
        return cls(seed if split == "seed" else split, seed)


class Entry(NamedTuple):
    """Text of a cell: mean and deviation; its mean as a number, and whether it leads the column."""

    text: str
    value: float | None = None
    leads: bool = False

    @property
    def mean(self) -> str:
        """The text without the deviation."""
        return self.text.partition(" ± ")[0]

    @property
    def deviation(self) -> str:
        """The deviation; empty without."""
        return self.text.partition(" ± ")[2]


class Row:
    """One row of a table, such as a method over all seeds; `method` identifies it."""

    def __init__(self, table: Table, method: str) -> None:
        self._table, self.method = table, method
        self.choice = table.choices.get(method, Choice())
        self.swept = table.swept.get(method, {})
        self.cells = [cell for cell in table.results if cell.row == method]
        self.trials = [(cell, trial) for cell in self.cells for trial in table.results[cell]]

    @cached_property
    def runs(self) -> list[Any]:
        return [self._table.results[cell][trial] for cell, trial in self.trials]

    @property
    def local(self) -> list[Any]:
        """Local's result with the same seed, for each of `runs`; None if there is none."""
        return [self._table.same_trial(*at).local for at in self.trials]

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Each result with Local's of the same trial, where there is one."""
        return [pair for pair in zip(self.runs, self.local, strict=True) if pair[1] is not None]

    @property
    def settings(self) -> RunSettings:
        return self.runs[0].settings if self.runs else RunSettings.of({"method": self.method})

    @property
    def is_local(self) -> bool:
        """True if the peers train alone."""
        return self.settings.method == "local"

    @property
    def reference(self) -> str:
        """Reason why the row is not ranked, see `methods.reference`."""
        return reference(self.settings)

    @cached_property
    def name(self) -> str:
        """Display name: that of a plugin without its module, unless two rows would have it."""
        shared = sum(display(other) == display(self.method) for other in self._table._names) > 1
        return self.method if shared else display(self.method)

    @property
    def label(self) -> str:
        """Name in a table; a star marks a reference."""
        return f"{self.name} *" if self.reference else self.name

    @property
    def peers(self) -> int:
        return sum(run.peers for run in self.runs)

    @cached_property
    def diverged(self) -> int:
        return sum(int(run.diverged.sum()) for run in self.runs)

    @property
    def is_lost(self) -> bool:
        """True if every peer of every run diverged: its accuracies say nothing of the method."""
        return bool(self.diverged) and self.diverged == self.peers

    def _cell(self, column: Column) -> Cell:
        return Cell(self.method, column.panel, column.x)

    def numbers(self, column: Column) -> list[float | None]:
        cell = self._cell(column)
        return [self._table.number(cell, at, column) for at in self._table.results.get(cell, {})]

    def repeats(self, column: Column) -> dict[Any, Floats]:
        """Return repetition -> values that the test compares, see `Table.repeats`."""
        return self._table.repeats(self._cell(column), column)

    def summary(self, column: Column) -> tuple[float, float] | None:
        """Return mean and sample deviation over trials (0 for one trial), or None."""
        values = self._known(column)
        return (float(np.mean(values)), deviation(values)) if values else None

    def _known(self, column: Column) -> list[float]:
        return [value for value in self.numbers(column) if value is not None]

    def text(self, column: Column) -> str:
        """Write mean and deviation over trials (cost: mean only); a dash without a value."""
        summary, cell = self.summary(column), self._cell(column)
        if summary is None:
            if cell in self._table.refused:
                return "refused"
            return "diverged" if self.diverged and column.key in LOSSES else self._table.dash
        if self.is_lost and column.better and column.group != COST:
            return "diverged"
        mean, spread = summary
        if text := reached(self._known(column)):
            return text
        if len(self._table.results[cell]) == 1 or not column.better:
            return column.show(mean)
        return f"{column.show(mean)} ± {(column.deviation or column.show)(spread).lstrip('+')}"


@dataclass(frozen=True, eq=False)
class Table:
    """Results by cell and trial."""

    results: Mapping[Cell, Mapping[Trial, Any]]
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by tuning, of a row
    swept: Mapping[str, plan.Values] = field(default_factory=dict)  # values that name a row
    refused: Mapping[Cell, str] = field(default_factory=dict)  # why a cell has no results
    dash: str = "-"  # text of a cell without a number
    ratio: float | None = None  # see `paired.split_ratio`; None: that of the first run
    _numbers: dict[tuple[Cell, Trial, str], float | None] = field(default_factory=dict, repr=False)
    _same: dict[tuple[Cell, Trial], SameTrial] = field(default_factory=dict, repr=False)
    _entries: dict[Column, dict[str, Entry]] = field(default_factory=dict, repr=False)

    @classmethod
    def of_runs(
        cls,
        runs: Mapping[str, Sequence[Run]],
        choices: Mapping[str, Choice] = MappingProxyType({}),
        swept: Mapping[str, plan.Values] = MappingProxyType({}),
    ) -> Table:
        """Return the table of one panel; `runs` by method or by label of swept values."""
        results = {Cell(row): {Trial.of(run): run for run in of} for row, of in runs.items()}
        return cls(results, choices, swept)

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys([cell.row for cell in (*self.results, *self.refused)]))

    @cached_property
    def rows(self) -> list[Row]:
        """Rows in order; one whose cells are all refused has no runs."""
        return [Row(self, name) for name in self._names]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def noun(self) -> str:
        """Word for a row: "method" or, in a sweep, "setting"."""
        return "setting" if any(row.swept for row in self.rows) else "method"

    @cached_property
    def has_same_data(self) -> bool:
        """True if the peers of all rows have the same data with the same seed."""
        settings = [row.settings.of_data for row in self.rows if row.runs]
        return all(each == settings[0] for each in settings)

    def same_trial(self, cell: Cell, trial: Trial) -> SameTrial:
        """Return the results of the same panel, position, seed and data, Local's among them."""
        if (cell, trial) not in self._same:
            mine = self.results[cell][trial]
            rows = {
                other.row: of[trial]
                for other, of in self.results.items()
                if other[1:] == cell[1:] and trial in of
                if of[trial] is mine or of[trial].settings.of_data == mine.settings.of_data
            }
            alone = next((row.method for row in self.rows if self._is_local_of(row, cell.row)), "")
            self._same[cell, trial] = SameTrial(
                rows, rows.get(alone), lambda row: self._finals[cell._replace(row=row)]
            )
        return self._same[cell, trial]

    @cached_property
    def _finals(self) -> dict[Cell, float]:
        """Mean over trials of a cell's final accuracy, or of minus its final loss."""
        return {cell: _final([*of.values()]) for cell, of in self.results.items()}

    def _is_local_of(self, row: Row, other: str) -> bool:
        """Return whether a row is Local with the same swept values as another row."""
        values = {key: value for key, value in row.swept.items() if key != "method"}
        return row.is_local and values.items() <= self.swept.get(other, {}).items()

    def number(self, cell: Cell, trial: Trial, column: Column) -> float | None:
        at = cell, trial, column.key
        if at not in self._numbers:
            self._numbers[at] = column.of(self.results[cell][trial], self.same_trial(cell, trial))
        return self._numbers[at]

    def peers(self, cell: Cell, trial: Trial, column: Column) -> Floats:
        """Return the values that the test compares: (n,), or (1,) for a measure of the run."""
        number = self.number(cell, trial, column)
        if column.of_peers is not None and number is not None:
            values = column.of_peers(self.results[cell][trial], self.same_trial(cell, trial))
            if values is not None:
                return values
        return np.array([np.nan if number is None else number])

    def repeats(self, cell: Cell, column: Column) -> dict[Any, Floats]:
        """Return division of the data -> mean over its seeds, which repeat the training only."""
        found: dict[Any, list[Floats]] = {}
        for trial in self.results.get(cell, {}):
            if self.number(cell, trial, column) is not None:
                found.setdefault(trial.split, []).append(self.peers(cell, trial, column))
        return {at: np.mean(of, axis=0) if len(of) > 1 else of[0] for at, of in found.items()}

    @cached_property
    def rare(self) -> tuple[int, float] | None:
        """The rarer of two classes and its share, see `coterie.app.runs.quality.rare_class`."""
        return rare_class(next(row.runs[0] for row in self.rows if row.runs))

    @cached_property
    def main(self) -> Column | None:
        """Column of the headline: accuracy, AUROC if a class is rare; or else RMSE or loss."""
        columns = {column.key: column for column in self.shown()}
        keys = (*(["auroc"] if self.rare else []), "accuracy", "rmse", "loss")
        return next((columns[key] for key in keys if key in columns), None)

    def shown(self) -> list[Column]:
        """Return the columns to show: those that some row has, and that say something new."""
        same = {"weighted": "accuracy", "worst_decile": "worst", "bytes_received": "bytes"}
        redundant = {key for key, other in same.items() if self._agree(key, other)}
        if not any(row.diverged for row in self.rows):
            redundant.add("diverged")
        columns = COLUMNS if self.rare else [each for each in COLUMNS if each.key != "auprc"]
        return [
            column
            for column in sorted(
                columns, key=lambda each: each.key not in ("auroc", "auprc") or not self.rare
            )
            if column.key not in redundant and any(row.summary(column) for row in self.rows)
        ]

    def _agree(self, key: str, other: str) -> bool:
        for row in self.rows:
            a, b = (np.array(row.numbers(MEASURES[k]), dtype=np.float64) for k in (key, other))
            if not np.allclose(a, b, rtol=1e-12, atol=0, equal_nan=True):  # None becomes NaN
                return False
        return True

    def candidates(self, column: Column) -> list[Row]:
        """Return the rows that may lead in a column: ranked, same data, some peer not diverged."""
        if not self.has_same_data or not column.better:
            return []
        is_loss = column.key in LOSSES
        ranked = [row for row in self.rows if not (row.reference or row.is_lost)]
        return [row for row in ranked if row.summary(column) and not (is_loss and row.diverged)]

    @cached_property
    def _shared(self) -> float:
        """Test rows per training row if every seed divides the same rows again, else 0."""
        if self.ratio is not None:
            return self.ratio
        return split_ratio(next(row.runs[0] for row in self.rows if row.runs))

    def leading(self, column: Column) -> list[Row]:
        """Return the candidate with the best mean, and those not significantly worse."""
        sign = 1.0 if column.better == "high" else -1.0
        rows = {row.method: row for row in self.candidates(column)}
        values = {
            method: {at: sign * of_p for at, of_p in row.repeats(column).items()}
            for method, row in rows.items()
        }
        return [rows[method] for method in leaders(values, self._shared)] if rows else []

    def bold(self, column: Column) -> frozenset[str]:
        """Return the leading rows; empty if no candidate is significantly worse."""
        leads = self.leading(column)
        if len(leads) == len(self.candidates(column)):
            return frozenset()
        return frozenset(row.method for row in leads)

    def entries(self, column: Column) -> dict[str, Entry]:
        if column not in self._entries:
            leads = self.bold(column)
            means = {row.method: row.summary(column) or (None,) for row in self.rows}
            self._entries[column] = {
                row.method: Entry(row.text(column), means[row.method][0], row.method in leads)
                for row in self.rows
            }
        return self._entries[column]


def _final(runs: Sequence[Any]) -> float:
    has_accuracy = all(run.has_accuracy for run in runs)
    name, sign = ("test_accuracy", 1.0) if has_accuracy else ("test_loss", -1.0)
    ends = [run.course(name)[-1] for run in runs if len(run.rounds)]
    return -np.inf if np.isnan(ends).any() or not ends else sign * float(np.mean(ends))
