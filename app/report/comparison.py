"""Compare methods: the same experiment for each method and seed, in one table.

Every method is measured in the same way: the last personal models and those best on validation
data, mean, spread and worst tenth over peers, gain over Local peer by peer at equal seed and split,
the share of peers that improve, recovery of known clusters, and cost. Bold is who leads, by a
paired test (`coterie.app.report.paired_test`), where not everybody does.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from coterie.app.report import methods
from coterie.app.report.measures import COLUMNS, Column
from coterie.app.report.paired_test import leaders
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Floats, Run

_DEVIATION_IN_TERMINAL = ("accuracy", "gain", "loss_gain")
_IN_TERMINAL = (
    *(*_DEVIATION_IN_TERMINAL, "newcomers", "fine_tuned", "improved"),
    *("loss", "diverged", "bytes", "seconds"),
)
_LOSSES = ("loss", "loss_gain")
IN_LATEX = ("accuracy", "worst_decile", "loss", "gain", "loss_gain", "bytes")
"""Columns of comparison.tex unless others are asked for; the loss where there is no accuracy."""


@dataclass(frozen=True)
class Row:
    """One method over all seeds.

    Attributes
    ----------
    method : its name. settings : what tuning chose, by key; empty without tuning.
    runs : one per seed. local : Local's run of the same seed each, None where there is none.
    values : column key -> one number per seed, or None where the measure does not exist.
    """

    method: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    local: tuple[Run | None, ...]
    values: Mapping[str, tuple[float | None, ...]]

    @property
    def is_yardstick(self) -> bool:
        """Whether the peers were told the true clusters."""
        return methods.is_yardstick(self.runs[0].config)

    @property
    def label(self) -> str:
        """The method for a table; a star marks a yardstick."""
        return f"{self.method} *" if self.is_yardstick else self.method

    @property
    def peers(self) -> int:
        """Number of peers in all runs."""
        return sum(run.peers for run in self.runs)

    @property
    def diverged(self) -> int:
        """Number of peers that diverged in all runs."""
        return sum(int(run.diverged.sum()) for run in self.runs)

    def by_seed(self, column: Column) -> dict[object, Floats]:
        """Seed -> (n,) what each peer contributes to a column; (1,) where only the run has it."""
        pairs = zip(self.runs, self.values[column.key], strict=True)
        return {
            run.config.get("seed"): np.array([value])
            if column.of_peers is None
            else column.of_peers(run)
            for run, value in pairs
            if value is not None
        }

    def summary(self, column: Column) -> tuple[float, float] | None:
        """Mean and standard deviation over seeds (sample; 0 for one seed), or None.

        Infinite where one of the seeds is.
        """
        values = [value for value in self.values[column.key] if value is not None]
        if not values:
            return None
        mean = float(np.mean(values))
        spreads = len(values) > 1 and np.isfinite(mean)
        return mean, float(np.std(values, ddof=1)) if spreads else 0.0


def rows(
    runs: Mapping[str, Sequence[Run]], settings: Mapping[str, Mapping[str, Any]]
) -> tuple[Row, ...]:
    """Measure the runs of each method, seed by seed beside those of the others."""
    of_seed: dict[object, dict[str, Run]] = {}
    for method, of_method in runs.items():
        for run in of_method:
            of_seed.setdefault(run.config.get("seed"), {})[method] = run
    made = []
    for method, of_method in runs.items():
        beside = [of_seed[run.config.get("seed")] for run in of_method]
        local = tuple(each.get("local") for each in beside)
        pairs = tuple(zip(of_method, beside, strict=True))
        values = {column.key: tuple(column.of(*pair) for pair in pairs) for column in COLUMNS}
        made.append(Row(method, settings.get(method, {}), tuple(of_method), local, values))
    return tuple(made)


def shown(made: Sequence[Row]) -> list[Column]:
    """The columns that some method has; nobody diverging needs no column."""
    has = [column for column in COLUMNS if any(row.summary(column) for row in made)]
    return [column for column in has if column.key != "diverged" or any(r.diverged for r in made)]


def cell(row: Row, column: Column) -> str:
    """Mean and deviation over seeds for people (cost: the mean); a dash where there is nothing."""
    found = row.summary(column)
    if found is None:
        return "diverged" if row.diverged and column.key in _LOSSES else "-"
    mean, deviation = found
    if len(row.runs) == 1 or not column.better:
        return column.show(mean)
    show = column.deviation or column.show
    return f"{column.show(mean)} ± {show(deviation).lstrip('+')}"


def candidates(made: Sequence[Row], column: Column) -> list[Row]:
    """The methods that may lead in a column: no yardstick, and none that diverged out of it."""
    return [
        row
        for row in made
        if column.better
        and not row.is_yardstick
        and row.summary(column)
        and not (row.diverged and column.key in _LOSSES)
    ]


def leading(made: Sequence[Row], column: Column) -> list[Row]:
    """The candidate with the best mean, and those that the paired test cannot tell from it."""
    sign = 1.0 if column.better == "high" else -1.0
    rows = {row.method: row for row in candidates(made, column)}
    values = {
        method: {seed: sign * of_p for seed, of_p in row.by_seed(column).items()}
        for method, row in rows.items()
    }
    return [rows[method] for method in leaders(values)] if rows else []


def bold(made: Sequence[Row], column: Column) -> frozenset[str]:
    """The methods that lead, where the test tells them from some other."""
    found = leading(made, column)
    if len(found) == len(candidates(made, column)):
        return frozenset()
    return frozenset(row.method for row in found)


def table(made: Sequence[Row], title: str) -> Table:
    """The comparison for a terminal of 80 columns: what decides; the files have the rest."""
    columns = [column for column in shown(made) if column.key in _IN_TERMINAL]
    if any(column.key == "accuracy" for column in columns):
        columns = [column for column in columns if column.key != "loss"]
    if any(column.key == "diverged" for column in columns):
        columns = [column for column in columns if column.key != "seconds"]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    leads = {column.key: bold(made, column) for column in columns}
    for row in made:
        cells = [row.label]
        for column in columns:
            whole = cell(row, column)
            cells.append(whole if column.key in _DEVIATION_IN_TERMINAL else whole.split(" ± ")[0])
        styles = ["bold" if row.method in leads[column.key] else "" for column in columns]
        table.add_row(*map(Text, cells, ["", *styles]))
    return table


def as_csv(made: Sequence[Row]) -> str:
    """One line a method and seed, full precision, empty where a number does not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "seed", *(column.key for column in COLUMNS), "settings", "run"])
    for row in made:
        for k, run in enumerate(row.runs):
            numbers = [row.values[column.key][k] for column in COLUMNS]
            writer.writerow(
                [row.method, run.config.get("seed"),
                 *("" if number is None else repr(number) for number in numbers),
                 json.dumps(row.settings), run.directory.name]
            )  # fmt: skip
    return text.getvalue()


def as_latex(made: Sequence[Row], keys: Collection[str] = IN_LATEX) -> str:
    """A booktabs table of the comparison.

    Parameters
    ----------
    keys : of the columns, as far as there are some.
    """
    columns = [column for column in shown(made) if column.key in keys]
    if keys is IN_LATEX and any(column.key == "accuracy" for column in columns):
        columns = [column for column in columns if column.key not in _LOSSES]
    lines = [
        r"% \usepackage{booktabs}",
        "% bold: the best mean and what a paired test over seeds and peers cannot tell from it",
        "% *: a yardstick, told the true clusters",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["method", *(_escaped(column.title) for column in columns)]) + r" \\",
        r"\midrule",
        *(
            " & ".join([_escaped(row.label), *(_latex(made, row, c) for c in columns)]) + r" \\"
            for row in made
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex(made: Sequence[Row], row: Row, column: Column) -> str:
    text = _escaped(cell(row, column)).replace(" ± ", r" $\pm$ ")
    return rf"\textbf{{{text}}}" if row.method in bold(made, column) else text


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_&#$" else each for each in text)


def write(made: Sequence[Row], directory: Path, keys: Collection[str] = IN_LATEX) -> None:
    """Write comparison.csv and, with the columns `keys`, comparison.tex into `directory`."""
    atomic.write(directory / "comparison.csv", as_csv(made))
    atomic.write(directory / "comparison.tex", as_latex(made, keys))
