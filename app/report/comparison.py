"""Compare methods: the same experiment for each method and seed, in one table.

Every method is measured in the same way: the last personal models and those best on validation
data, mean, spread and worst tenth over peers, gain over Local peer by peer at equal seed and split,
the share of peers that improve, recovery of known clusters, and cost.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from app.report.measures import COLUMNS, Column
from app.runs.rundir import Run

_DEVIATION_IN_TERMINAL = ("accuracy", "gain", "loss_gain")
_IN_TERMINAL = (*_DEVIATION_IN_TERMINAL, "improved", "loss", "bytes", "seconds")


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

    def summary(self, column: Column) -> tuple[float, float] | None:
        """Mean and standard deviation over seeds (sample; 0 for one seed), or None."""
        values = [value for value in self.values[column.key] if value is not None]
        if not values:
            return None
        return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def rows(
    runs: Mapping[str, Sequence[Run]], settings: Mapping[str, Mapping[str, Any]]
) -> tuple[Row, ...]:
    """Measure the runs of each method, seed by seed against Local's."""
    alone = {run.config.get("seed"): run for run in runs.get("local", ())}
    made = []
    for method, of_method in runs.items():
        local = tuple(alone.get(run.config.get("seed")) for run in of_method)
        pairs = tuple(zip(of_method, local, strict=True))
        values = {column.key: tuple(column.of(*pair) for pair in pairs) for column in COLUMNS}
        made.append(Row(method, settings.get(method, {}), tuple(of_method), local, values))
    return tuple(made)


def shown(made: Sequence[Row]) -> list[Column]:
    """The columns that some method has."""
    return [column for column in COLUMNS if any(row.summary(column) for row in made)]


def cell(row: Row, column: Column) -> str:
    """Mean and deviation over seeds for people (cost: the mean); a dash where there is nothing."""
    found = row.summary(column)
    if found is None:
        return "-"
    mean, deviation = found
    if len(row.runs) == 1 or not column.better:
        return column.show(mean)
    show = column.deviation or column.show
    return f"{column.show(mean)} ± {show(deviation).lstrip('+')}"


def best(made: Sequence[Row], column: Column) -> frozenset[str]:
    """The methods with the best mean, as far as its digits are shown; none among fewer than two."""
    means = {row.method: found[0] for row in made if (found := row.summary(column))}
    if not column.better or len(means) < 2:
        return frozenset()
    top = column.show((max if column.better == "high" else min)(means.values()))
    return frozenset(method for method, mean in means.items() if column.show(mean) == top)


def table(made: Sequence[Row], title: str) -> Table:
    """The comparison for a terminal of 80 columns: what decides; the files have the rest."""
    columns = [column for column in shown(made) if column.key in _IN_TERMINAL]
    if any(column.key == "accuracy" for column in columns):
        columns = [column for column in columns if column.key != "loss"]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    bold = {column.key: best(made, column) for column in columns}
    for row in made:
        cells = [row.method]
        for column in columns:
            whole = cell(row, column)
            cells.append(whole if column.key in _DEVIATION_IN_TERMINAL else whole.split(" ± ")[0])
        styles = ["bold" if row.method in bold[column.key] else "" for column in columns]
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


def as_latex(made: Sequence[Row]) -> str:
    """A booktabs table of the comparison, the best of each column in bold."""
    columns = shown(made)
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["method", *(_escaped(column.title) for column in columns)]) + r" \\",
        r"\midrule",
        *(
            " & ".join([_escaped(row.method), *(_latex(made, row, c) for c in columns)]) + r" \\"
            for row in made
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex(made: Sequence[Row], row: Row, column: Column) -> str:
    text = _escaped(cell(row, column)).replace(" ± ", r" $\pm$ ")
    return rf"\textbf{{{text}}}" if row.method in best(made, column) else text


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_&#$" else each for each in text)


def write(made: Sequence[Row], directory: Path) -> None:
    """Write comparison.csv and comparison.tex into `directory`."""
    (directory / "comparison.csv").write_text(as_csv(made), encoding="utf-8")
    (directory / "comparison.tex").write_text(as_latex(made), encoding="utf-8")
