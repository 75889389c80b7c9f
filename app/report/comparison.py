"""Tables of a comparison of methods: in a terminal, comparison.csv and comparison.tex."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rich.console import Group

from coterie.app.experiments.measures import Column
from coterie.app.experiments.table import LOSSES, Table
from coterie.app.runs import atomic

_WITH_DEVIATION = ("accuracy", "c_index", "gain", "loss_gain")
_IN_TERMINAL = (
    *(*_WITH_DEVIATION, "newcomers", "fine_tuned", "improved"),
    *("loss", "diverged", "bytes"),
)
_COSTS_IN_TERMINAL = ("bytes", "bytes_received", "gradients", "seconds", "joules")
IN_LATEX = ("accuracy", "worst", "worst_decile", "loss", "gain", "loss_gain", "bytes")
"""Default columns of comparison.tex; the loss columns only if there is no accuracy."""


def in_terminal(table: Table, title: str) -> Group:
    """Return the main columns as a table for a terminal of 80 columns."""
    columns = _columns(table, _IN_TERMINAL, "loss")
    return table.in_terminal(title, columns, _WITH_DEVIATION)


def costs(table: Table) -> Group:
    """Return the costs of a run as a table for a terminal of 80 columns."""
    return table.in_terminal("Costs of a run", _columns(table, _COSTS_IN_TERMINAL))


def as_latex(table: Table, keys: Collection[str] = IN_LATEX) -> str:
    """Return comparison.tex with the columns `keys`; those without values are left out."""
    return table.as_latex(_columns(table, keys, *(LOSSES if keys is IN_LATEX else ())))


def _columns(table: Table, keys: Collection[str], *unless_accuracy: str) -> list[Column]:
    """Return the shown columns of these keys, some only if there is no accuracy."""
    columns = [column for column in table.shown() if column.key in keys]
    has_accuracy = any(column.key == "accuracy" for column in columns)
    return [c for c in columns if not (has_accuracy and c.key in unless_accuracy)]


def write(table: Table, directory: Path, keys: Collection[str] = IN_LATEX) -> None:
    """Write comparison.csv, and comparison.tex with the columns `keys`, into `directory`."""
    atomic.write(directory / "comparison.csv", table.as_csv())
    atomic.write(directory / "comparison.tex", as_latex(table, keys))
