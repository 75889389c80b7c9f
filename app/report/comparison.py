"""Tables of a comparison of methods: in a terminal, comparison.csv and comparison.tex."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as Rich
from rich.text import Text

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import COLUMNS, Column
from coterie.app.experiments.table import LOSSES, Entry, Table
from coterie.app.runs import atomic
from coterie.app.runs import cells as csv_cells

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


def in_terminal(table: Table, title: str) -> Group:
    """Return the main columns as a table for a terminal of 80 columns."""
    columns = _columns(table, _IN_TERMINAL, "loss")
    return as_rich(table, title, columns, _WITH_DEVIATION)


def costs(table: Table) -> Group:
    """Return the costs of a run as a table for a terminal of 80 columns."""
    return as_rich(table, "Costs of a run", _columns(table, _COSTS_IN_TERMINAL))


def as_latex(table: Table, keys: Collection[str] = IN_LATEX) -> str:
    """Return comparison.tex with the columns `keys`; those without values are left out."""
    return _as_latex(table, _columns(table, keys, *(LOSSES if keys is IN_LATEX else ())))


def _columns(table: Table, keys: Collection[str], *unless_accuracy: str) -> list[Column]:
    """Return the shown columns of these keys, some only if there is no accuracy."""
    columns = [column for column in table.shown() if column.key in keys]
    has_accuracy = any(column.key == "accuracy" for column in columns)
    return [c for c in columns if not (has_accuracy and c.key in unless_accuracy)]


def write(table: Table, directory: Path, keys: Collection[str] = IN_LATEX) -> None:
    """Write comparison.csv, and comparison.tex with the columns `keys`, into `directory`."""
    atomic.write(directory / "comparison.csv", as_csv(table))
    atomic.write(directory / "comparison.tex", as_latex(table, keys))


def as_rich(
    table: Table, title: str, columns: Sequence[Column], with_deviation: Collection[str] = ()
) -> Group:
    """Return a table for a terminal of 80 columns, the leaders in bold.

    Columns that do not fit beside whole names go on in a second table.
    """
    texts = [
        [
            Text(each.text if column.key in with_deviation else each.mean,
                 "bold" if each.leads else "")
            for each in table.entries(column).values()
        ]
        for column in columns
    ]  # fmt: skip
    widths = [
        1 + max(len(column.title), *map(len, of)) for column, of in zip(columns, texts, strict=True)
    ]
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
        for name, *cells in zip(names, *(texts[k] for k in part), strict=True):
            made.add_row(Text(name), *cells)
        tables.append(made)
    return Group(*tables)


def as_csv(table: Table) -> str:
    """Write a line per row and trial in full precision, empty where a number is missing."""
    has_joules = any(column.key == "joules" for column in table.shown())
    columns = [column for column in COLUMNS if column.key != "joules" or has_joules]
    keys = list(dict.fromkeys(k for row in table.rows for k in row.swept if k != "method"))
    names = [column.key for column in columns]
    lines: list[list[object]] = [["method", "seed", *names, "settings", "edges", "run", *keys]]
    for row in table.rows:
        for cell, trial in row.trials:
            numbers = (table.number(cell, trial, column) for column in columns)
            lines.append(
                [row.method, trial.seed, *("" if x is None else repr(x) for x in numbers),
                 json.dumps(dict(row.choice.settings)), json.dumps(dict(row.choice.edges)),
                 table.results[cell][trial].directory.name,
                 *(row.swept.get(key, "") for key in keys)]
            )  # fmt: skip
    return csv_cells.as_csv(lines)


def _as_latex(table: Table, columns: Sequence[Column]) -> str:
    """Return a LaTeX table (booktabs), the leaders in bold, tuned settings last."""
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
    titles = [table.noun, *(_escaped(c.title) for c in columns), *["tuned"] * is_tuned]
    lines = [
        *(f"% {note}" for note, applies in notes.items() if applies),
        rf"\begin{{tabular}}{{l{'r' * len(columns)}{'l' * is_tuned}}}",
        r"\toprule",
        " & ".join(titles) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = list(_latex([of[row.method] for of in entries]))
        tuned = [_latex_choice(row.choice)] * is_tuned
        lines.append(" & ".join([_escaped(row.label), *cells, *tuned]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        text = _escaped(entry.text).replace(" ± ", r" $\pm$ ")
        yield rf"\textbf{{{text}}}" if entry.leads else text


def _latex_choice(choice: Choice) -> str:
    """Write tuned settings by the last part of their keys, with a dagger at an edge."""
    return ", ".join(
        _escaped(f"{key.rpartition('.')[2]} {value}") + r"$^\dagger$" * (key in choice.edges)
        for key, value in choice.settings.items()
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "%_&#$" else each for each in text)
