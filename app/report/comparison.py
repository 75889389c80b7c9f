"""Compare methods in one table: the same experiment for each method and seed.

The measures are the same for all methods: final personal models and those best on validation data;
mean, spread and worst 10 % over peers; gain over Local per peer, with equal seed and split; share
of peers that improve; recovery of known clusters; cost. Bold marks the leading methods by a paired
test (`coterie.app.report.paired_test`), unless all methods lead.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from coterie.app.report import methods
from coterie.app.report.measures import COLUMNS, Column
from coterie.app.report.paired_test import leaders, redivision
from coterie.app.report.tuning import Choice
from coterie.app.runs import atomic, cells, plan
from coterie.app.runs.rundir import Floats, Run
from coterie.strategies.names import display

_DEVIATION_IN_TERMINAL = ("accuracy", "c_index", "gain", "loss_gain")
_IN_TERMINAL = (
    *(*_DEVIATION_IN_TERMINAL, "newcomers", "fine_tuned", "improved"),
    *("loss", "diverged", "bytes"),
)
_COSTS_IN_TERMINAL = ("bytes", "bytes_received", "gradients", "seconds", "joules")
_LOSSES = ("loss", "loss_gain")
_OF_DATA = ("peers", "split-seed", "data-dir", "hold-out")
"""Top-level keys that decide the peers' data."""
IN_LATEX = ("accuracy", "worst", "worst_decile", "loss", "gain", "loss_gain", "bytes")
"""Default columns of comparison.tex; the loss columns only if there is no accuracy."""


@dataclass(frozen=True)
class Row:
    """One method over all seeds.

    Attributes
    ----------
    method : str
        Name of the method, or label of the swept values; identifies the row.
    choice : Choice
        Choice of tuning.
    runs : tuple of Run
        One run per seed.
    local : tuple of Run or None
        Local's run with the same seed, for each run; None if there is none.
    values : Mapping of str to tuple of float or None
        Column key -> one number per seed; None if the measure does not exist.
    swept : Mapping of str to Any
        Values of the keys that the rows differ in; empty if they differ in the method.
    name : str
        Display name: that of a plugin without its module, unless two rows would have the same.
    """

    method: str
    choice: Choice
    runs: tuple[Run, ...]
    local: tuple[Run | None, ...]
    values: Mapping[str, tuple[float | None, ...]]
    swept: plan.Values = field(default_factory=dict)
    name: str = ""

    @property
    def is_local(self) -> bool:
        """True if the peers train alone."""
        return bool(self.runs[0].config["method"] == "local")

    @property
    def reference(self) -> str:
        """Reason why the method is not ranked, see `methods.reference`."""
        return methods.reference(self.runs[0].config)

    @property
    def label(self) -> str:
        """Name in a table; a star marks a reference."""
        return f"{self.name} *" if self.reference else self.name

    @property
    def peers(self) -> int:
        """Number of peers, summed over the runs."""
        return sum(run.peers for run in self.runs)

    @property
    def diverged(self) -> int:
        """Number of diverged peers, summed over the runs."""
        return sum(int(run.diverged.sum()) for run in self.runs)

    def by_seed(self, column: Column) -> dict[object, Floats]:
        """Return seed -> (n,) values of the peers in a column; (1,) for a measure of the run."""
        pairs = zip(self.runs, self.values[column.key], strict=True)
        return {
            run.config.get("seed"): np.array([value])
            if column.of_peers is None
            else column.of_peers(run)
            for run, value in pairs
            if value is not None
        }

    def summary(self, column: Column) -> tuple[float, float] | None:
        """Return mean and sample deviation over seeds (0 for one seed), or None.

        The mean is infinite if the value of a seed is.
        """
        values = [value for value in self.values[column.key] if value is not None]
        if not values:
            return None
        mean = float(np.mean(values))
        spreads = len(values) > 1 and np.isfinite(mean)
        return mean, float(np.std(values, ddof=1)) if spreads else 0.0


def rows(
    runs: Mapping[str, Sequence[Run]],
    choices: Mapping[str, Choice],
    swept: Mapping[str, plan.Values] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """Measure the runs of each method, each together with the other methods' runs of its seed.

    Parameters
    ----------
    runs : Mapping of str to Sequence of Run
        Runs by method or by label of swept values (`plan.label`), one per seed.
    choices : Mapping of str to Choice
        Settings that tuning chose, by method; empty without tuning.
    swept : Mapping of str to Mapping of str to Any
        Values of the swept keys, by label.
    """
    of_seed: dict[object, dict[str, Run]] = {}
    for method, of_method in runs.items():
        for run in of_method:
            of_seed.setdefault(run.config.get("seed"), {})[method] = run
    made = []
    for method, of_method in runs.items():
        own = swept.get(method, {})
        alone = next((name for name in runs if _is_local_of(own, name, runs, swept)), "")
        beside = [_beside(run, of_seed[run.config.get("seed")], alone) for run in of_method]
        local = tuple(each.get("local") for each in beside)
        pairs = tuple(zip(of_method, beside, strict=True))
        values = {column.key: tuple(column.of(*pair) for pair in pairs) for column in COLUMNS}
        choice, name = choices.get(method, Choice()), display(method)
        if sum(display(other) == name for other in runs) > 1:
            name = method
        made.append(Row(method, choice, tuple(of_method), local, values, own, name))
    return tuple(made)


def _is_local_of(
    own: plan.Values,
    name: str,
    runs: Mapping[str, Sequence[Run]],
    swept: Mapping[str, plan.Values],
) -> bool:
    """Return whether a row of a sweep is Local with the same values as the row `own`."""
    others = {key: value for key, value in swept.get(name, {}).items() if key != "method"}
    return runs[name][0].config["method"] == "local" and others.items() <= own.items()


def _beside(run: Run, of_seed: Mapping[str, Run], alone: str) -> dict[str, Run]:
    """Return the runs to measure a run against: same seed, same data; `alone` is that of Local."""
    same = {name: each for name, each in of_seed.items() if _data(each) == _data(run)}
    return same | ({"local": same[alone]} if alone in same else {})


def noun(made: Sequence[Row]) -> str:
    """Return the word for a row: "method" or, in a sweep, "setting"."""
    return "setting" if any(row.swept for row in made) else "method"


def have_same_data(made: Sequence[Row]) -> bool:
    """Return whether the peers of all rows have the same data with the same seed."""
    return all(_data(row.runs[0]) == _data(made[0].runs[0]) for row in made)


def _data(run: Run) -> list[Any]:
    """Return the values of the keys that decide the peers' data, except the seed."""
    tables = "partition", str(run.config.get("dataset")), "dataset-options", "partition-options"
    return [run.config.get(key) for key in ("dataset", *_OF_DATA, *tables)]


def shown(made: Sequence[Row]) -> list[Column]:
    """Return the columns to show: those that some method has, and that are not redundant.

    Without diverged peers there is no column of them, where all peers have the same number of
    training examples no weighted mean, where the worst 10 % are one peer no mean of them, where all
    that is sent arrives no bytes received, and where a run lacks joules none of the others.
    """
    redundant = set()
    if not any(row.diverged for row in made):
        redundant.add("diverged")
    if all(_are_close(row.values["weighted"], row.values["accuracy"]) for row in made):
        redundant.add("weighted")
    if all(_are_close(row.values["worst"], row.values["worst_decile"]) for row in made):
        redundant.add("worst_decile")
    if all(_are_close(row.values["bytes_received"], row.values["bytes"]) for row in made):
        redundant.add("bytes_received")
    if any(None in row.values["joules"] for row in made):
        redundant.add("joules")
    return [
        column
        for column in COLUMNS
        if column.key not in redundant and any(row.summary(column) for row in made)
    ]


def _are_close(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    a, b = (np.array(values, dtype=np.float64) for values in (one, other))  # None becomes NaN
    return bool(np.allclose(a, b, rtol=1e-12, atol=0, equal_nan=True))


def cell(row: Row, column: Column) -> str:
    """Format mean and deviation over seeds (cost: mean only); a dash if there is no value."""
    summary = row.summary(column)
    if summary is None:
        return "diverged" if row.diverged and column.key in _LOSSES else "-"
    mean, deviation = summary
    if len(row.runs) == 1 or not column.better:
        return column.show(mean)
    show = column.deviation or column.show
    return f"{column.show(mean)} ± {show(deviation).lstrip('+')}"


def candidates(made: Sequence[Row], column: Column) -> list[Row]:
    """Return the methods that may lead in a column: ranked and, for a loss, not diverged.

    Rows whose peers have different data are not ranked.
    """
    if not have_same_data(made):
        return []
    return [
        row
        for row in made
        if column.better
        and not row.reference
        and row.summary(column)
        and not (row.diverged and column.key in _LOSSES)
    ]


def leading(made: Sequence[Row], column: Column) -> list[Row]:
    """Return the candidate with the best mean, and those not significantly worse."""
    sign = 1.0 if column.better == "high" else -1.0
    rows = {row.method: row for row in candidates(made, column)}
    values = {
        method: {seed: sign * of_p for seed, of_p in row.by_seed(column).items()}
        for method, row in rows.items()
    }
    if not rows:
        return []
    redivided = redivision(made[0].runs[0])
    return [rows[method] for method in leaders(values, redivided)]


def bold(made: Sequence[Row], column: Column) -> frozenset[str]:
    """Return the leading methods; empty if no candidate is significantly worse."""
    leads = leading(made, column)
    if len(leads) == len(candidates(made, column)):
        return frozenset()
    return frozenset(row.method for row in leads)


def table(made: Sequence[Row], title: str) -> Table:
    """Return the main columns as a table for a terminal of 80 columns."""
    columns = [column for column in shown(made) if column.key in _IN_TERMINAL]
    if any(column.key == "accuracy" for column in columns):
        columns = [column for column in columns if column.key != "loss"]
    return _table(made, columns, title)


def costs(made: Sequence[Row]) -> Table:
    """Return the costs of a run as a table for a terminal of 80 columns."""
    columns = [column for column in shown(made) if column.key in _COSTS_IN_TERMINAL]
    return _table(made, columns, "Costs of a run")


def _table(made: Sequence[Row], columns: Sequence[Column], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(noun(made), no_wrap=noun(made) == "method", overflow="fold")
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
    """Write a line per method and seed in full precision, empty where a number does not exist."""
    columns = [column for column in COLUMNS if column.key != "joules" or column in shown(made)]
    swept = list(dict.fromkeys(key for row in made for key in row.swept if key != "method"))
    lines: list[list[object]] = [
        ["method", "seed", *(column.key for column in columns), "settings", "edges", "run", *swept]
    ]
    for row in made:
        for k, run in enumerate(row.runs):
            numbers = [row.values[column.key][k] for column in columns]
            lines.append(
                [row.method, run.config.get("seed"),
                 *("" if number is None else repr(number) for number in numbers),
                 json.dumps(dict(row.choice.settings)), json.dumps(dict(row.choice.edges)),
                 run.directory.name, *(row.swept.get(key, "") for key in swept)]
            )  # fmt: skip
    return cells.as_csv(lines)


def as_latex(made: Sequence[Row], keys: Collection[str] = IN_LATEX) -> str:
    """Return the comparison as a LaTeX table (booktabs).

    Parameters
    ----------
    made : Sequence of Row
        Rows of the table.
    keys : Collection of str
        Keys of the columns; columns without values are left out.
    """
    columns = [column for column in shown(made) if column.key in keys]
    if keys is IN_LATEX and any(column.key == "accuracy" for column in columns):
        columns = [column for column in columns if column.key not in _LOSSES]
    leads = {column.key: bold(made, column) for column in columns}
    is_tuned = any(row.choice.settings for row in made)
    notes = {
        r"\usepackage{booktabs}": True,
        "bold: best mean, and means not significantly worse (paired test over seeds and peers)":
            any(leads.values()),
        "*: a reference, which is not ranked": any(row.reference for row in made),
        "dagger: the lowest or highest value that was tried": any(r.choice.edges for r in made),
    }  # fmt: skip
    titles = [noun(made), *(_escaped(column.title) for column in columns), *["tuned"] * is_tuned]
    lines = [
        *(f"% {note}" for note, applies in notes.items() if applies),
        rf"\begin{{tabular}}{{l{'r' * len(columns)}{'l' * is_tuned}}}",
        r"\toprule",
        " & ".join(titles) + r" \\",
        r"\midrule",
    ]
    for row in made:
        cells = [_latex(row, column, row.method in leads[column.key]) for column in columns]
        tuned = [_latex_choice(row.choice)] * is_tuned
        lines.append(" & ".join([_escaped(row.label), *cells, *tuned]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex(row: Row, column: Column, is_bold: bool) -> str:
    text = _escaped(cell(row, column)).replace(" ± ", r" $\pm$ ")
    return rf"\textbf{{{text}}}" if is_bold else text


def _latex_choice(choice: Choice) -> str:
    """Write tuned settings by the last part of their keys, with a dagger at an edge."""
    return ", ".join(
        _escaped(f"{key.rpartition('.')[2]} {value}") + r"$^\dagger$" * (key in choice.edges)
        for key, value in choice.settings.items()
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_&#$" else each for each in text)


def write(made: Sequence[Row], directory: Path, keys: Collection[str] = IN_LATEX) -> None:
    """Write comparison.csv, and comparison.tex with the columns `keys`, into `directory`."""
    atomic.write(directory / "comparison.csv", as_csv(made))
    atomic.write(directory / "comparison.tex", as_latex(made, keys))
