"""Comparison and the tables of its measures: on the page, in a terminal, CSV and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as Rich
from rich.text import Text

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import COLUMNS, COST, Column
from coterie.app.experiments.paired import MIN_SEEDS
from coterie.app.experiments.table import LOSSES, Entry, Table
from coterie.app.report import verdict
from coterie.app.report.section import Section
from coterie.app.runs import cells, diagnostics, units

if TYPE_CHECKING:
    from coterie.app.runs.diagnostics import Diagnostics
    from coterie.app.runs.rundir import Run

_WITH_DEVIATION = ("accuracy", "c_index", "gain", "loss_gain")
_IN_TERMINAL = (
    *(*_WITH_DEVIATION, "newcomers", "fine_tuned", "improved"),
    *("loss", "diverged", "bytes"),
)
_COSTS_IN_TERMINAL = ("bytes", "bytes_received", "gradients", "seconds", "joules")
_TERMINAL, _LONG_NAME = 80, 36
"""Columns of a terminal, and of the longest name that is not folded."""
IN_LATEX = ("accuracy", "worst", "worst_decile", "loss", "gain", "loss_gain", "bytes")
"""Default columns of comparison.tex; the loss columns only if there is no accuracy."""


@dataclass(frozen=True)
class Comparison:
    """Compared runs; the table has at least one row.

    `title` is the preset or directory; `failed`: run -> error, no row contains such a run;
    `latex`: keys of the columns of comparison.tex.
    """

    table: Table
    title: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    latex: Collection[str] = IN_LATEX
    _cards: dict[int, dict[int, Diagnostics]] = field(default_factory=dict, repr=False)

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for row in self.table.rows for run in row.runs]

    @cached_property
    def outcome(self) -> str:
        """Verdict in sentences."""
        return verdict.outcome(self.table)

    @property
    def seeds(self) -> list[Any]:
        """Seeds, sorted; a method may lack a seed whose run failed."""
        return sorted({run.config.get("seed") for run in self.runs})

    @property
    def has_several(self) -> bool:
        """True if a row has several runs."""
        return any(len(row.runs) > 1 for row in self.table.rows)

    def cards(self, run: Run) -> dict[int, Diagnostics]:
        """Return the diagnostics of one of its runs, read once."""
        if id(run) not in self._cards:
            self._cards[id(run)] = diagnostics.read(run)
        return self._cards[id(run)]


class Cell(NamedTuple):
    """Cell of a table: formatted mean and deviation, sort value, CSS classes."""

    mean: str
    deviation: str
    value: float | None
    classes: str | None


@dataclass(frozen=True)
class Measures(Section):
    """Table of measures by row: groups of columns, and the cells of each row."""

    id: str
    terminal: RenderableType
    groups: Sequence[tuple[str, Sequence[Column]]]
    cells: Mapping[str, Sequence[Cell]]
    notes: Sequence[str]
    sentences: Sequence[str] = ()  # in a terminal, where the page has its first paragraph
    failed: Mapping[str, str] = field(default_factory=dict)
    significance: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)  # comparison.csv and comparison.tex

    template = "measures.html.j2"

    def lines(self) -> list[RenderableType]:
        """Return the table, the verdict and the footnotes."""
        return [self.terminal, *self.sentences, *self.notes]

    def files(self) -> Mapping[str, str]:
        """Return the CSV and LaTeX files."""
        return self.tables


def results(compared: Comparison) -> Measures:
    """Return the table of all measures but costs."""
    table = compared.table
    seeds = max(len(row.runs) for row in table.rows)
    return Measures(
        "results",
        in_terminal(table, f"{compared.title}, {units.plural(seeds, 'seed')}"),
        *_cells(table, [each for each in _groups(table) if each[0] != COST]),
        verdict.notes(table),
        [compared.outcome],
        compared.failed,
        _significance(table, seeds),
        {"comparison.csv": as_csv(table), "comparison.tex": as_latex(table, compared.latex)},
    )


def costs(compared: Comparison) -> Measures | None:
    """Return the table of costs, beside the main measure."""
    table = compared.table
    main = [column for column in table.shown() if column.key in ("accuracy", "loss")][:1]
    of_cost = [each for each in _groups(table) if each[0] == COST]
    if not main and not of_cost:
        return None
    groups = [*(("", [column]) for column in main), *of_cost]
    terminal = as_rich(table, "Costs of a run", _columns(table, _COSTS_IN_TERMINAL))
    return Measures("costs", terminal, *_cells(table, groups), verdict.cost_notes(table))


def _groups(table: Table) -> list[tuple[str, list[Column]]]:
    return [(name, list(of)) for name, of in groupby(table.shown(), key=lambda each: each.group)]


def _cells(
    table: Table, groups: Sequence[tuple[str, Sequence[Column]]]
) -> tuple[Sequence[tuple[str, Sequence[Column]]], dict[str, list[Cell]]]:
    """Return the groups and the cells; the first column of a group has the class "start"."""
    made: dict[str, list[Cell]] = {row.method: [] for row in table.rows}
    for _, columns in groups:
        for column in columns:
            for method, entry in table.entries(column).items():
                marks = {"start": column is columns[0], "best": entry.leads}
                classes = " ".join(name for name, has in marks.items() if has) or None
                mean = units.NONE if entry.text == table.dash else entry.mean
                made[method].append(Cell(mean, entry.deviation, entry.value, classes))
    return groups, made


def _significance(table: Table, seeds: int) -> str:
    """Explain the meaning of bold, or why nothing is bold."""
    if table.divisions < MIN_SEEDS:
        count = units.plural(seeds, "seed")
        if table.divisions < seeds:
            count += f" of {units.plural(table.divisions, 'division')} of the data (split-seed)"
        return f"No difference is significant with {count} (no test possible)."
    if any(table.bold(column) for column in table.shown()):
        return (
            "Bold: the best mean of a column, and means that are not significantly worse (paired "
            "test over seeds and peers)."
        )
    return f"No difference is significant with {seeds} seeds (paired test over seeds and peers)."


def _columns(table: Table, keys: Collection[str], *unless_accuracy: str) -> list[Column]:
    """Return the shown columns of these keys, some only if there is no accuracy."""
    columns = [column for column in table.shown() if column.key in keys]
    has_accuracy = any(column.key == "accuracy" for column in columns)
    return [c for c in columns if not (has_accuracy and c.key in unless_accuracy)]


def in_terminal(table: Table, title: str) -> Group:
    """Return the main columns as a table for a terminal of 80 columns."""
    return as_rich(table, title, _columns(table, _IN_TERMINAL, "loss"), _WITH_DEVIATION)


def as_rich(
    table: Table, title: str, columns: Sequence[Column], with_deviation: Collection[str] = ()
) -> Group:
    """Return a table for a terminal of 80 columns, the leaders in bold.

    Columns that do not fit beside whole names go on in a second table.
    """
    texts = [
        [Text(each.text if column.key in with_deviation else each.mean,
              "bold" if each.leads else "") for each in table.entries(column).values()]
        for column in columns
    ]  # fmt: skip
    widths = [1 + max(len(c.title), *map(len, of)) for c, of in zip(columns, texts, strict=True)]
    names = [row.label for row in table.rows]
    is_short = table.noun == "method" and max(map(len, names)) <= _LONG_NAME
    left = _TERMINAL - 3 - (max(map(len, [table.noun, *names])) if is_short else _LONG_NAME)
    parts: list[list[int]] = [[]]
    for k, width in enumerate(widths):
        if parts[-1] and sum(widths[each] for each in parts[-1]) + width > left:
            parts.append([])
        parts[-1].append(k)
    tables: list[Rich] = []
    for part in parts:
        made = Rich(
            title="" if tables else title, title_justify="left", box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )  # fmt: skip
        made.add_column(table.noun, no_wrap=is_short, overflow="fold")
        for k in part:
            made.add_column(columns[k].title, justify="right", no_wrap=True)
        for name, *of_row in zip(names, *(texts[k] for k in part), strict=True):
            made.add_row(Text(name), *of_row)
        tables.append(made)
    return Group(*tables)


def as_csv(table: Table) -> str:
    """Write a line per row and trial in full precision, empty where a number is missing."""
    import pandas as pd

    has_joules = any(column.key == "joules" for column in table.shown())
    columns = [column for column in COLUMNS if column.key != "joules" or has_joules]
    keys = list(dict.fromkeys(k for row in table.rows for k in row.swept if k != "method"))
    lines = [
        {
            "method": row.method, "seed": trial.seed,
            **{column.key: table.number(cell, trial, column) for column in columns},
            "settings": json.dumps(dict(row.choice.settings)),
            "edges": json.dumps(dict(row.choice.edges)),
            "run": table.results[cell][trial].directory.name,
            **{key: row.swept.get(key) for key in keys},
        }
        for row in table.rows
        for cell, trial in row.trials
    ]  # fmt: skip
    return cells.csv_of(pd.DataFrame(lines, dtype=object))


def as_latex(table: Table, keys: Collection[str] = IN_LATEX) -> str:
    """Return a LaTeX table (booktabs) of these columns, leaders in bold, tuned settings last.

    Columns without values are left out.
    """
    import pandas as pd

    columns = _columns(table, keys, *(LOSSES if keys is IN_LATEX else ()))
    entries = [table.entries(column) for column in columns]
    is_tuned = any(row.choice.settings for row in table.rows)
    notes = {
        r"\usepackage{booktabs}": True,
        "bold: best mean, and means not significantly worse (paired test over seeds and peers)":
            any(entry.leads for of in entries for entry in of.values()),
        "*: a reference, which is not ranked": any(row.reference for row in table.rows),
        "dagger: the lowest or highest value that was tried":
            any(row.choice.edges for row in table.rows),
    }  # fmt: skip
    texts = {table.noun: [_escaped(row.label) for row in table.rows]}
    for column, of in zip(columns, entries, strict=True):
        texts[_escaped(column.title)] = [_latex(entry) for entry in of.values()]
    if is_tuned:
        texts["tuned"] = [_latex_choice(row.choice) for row in table.rows]
    layout = f"l{'r' * len(columns)}{'l' * is_tuned}"
    body = pd.DataFrame(texts).style.hide(axis="index").to_latex(column_format=layout, hrules=True)
    return "".join(f"% {note}\n" for note, applies in notes.items() if applies) + str(body)


def _latex(entry: Entry) -> str:
    text = _escaped(entry.text).replace(" ± ", r" $\pm$ ")
    return rf"\textbf{{{text}}}" if entry.leads else text


def _latex_choice(choice: Choice) -> str:
    """Write tuned settings by the last part of their keys, with a dagger at an edge."""
    return ", ".join(
        _escaped(f"{key.rpartition('.')[2]} {value}") + r"$^\dagger$" * (key in choice.edges)
        for key, value in choice.settings.items()
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_&#$" else each for each in text)
