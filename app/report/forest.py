"""Forest plot: estimates and intervals of institutions, and diamonds for the means of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.clients.diagnostics import Estimate

_REACH = 4
"""Axis on each side of 0, at most, in medians of the distances of the intervals' ends from 0."""
_WIDTH, _TICKS = 17, 7
"""Characters of a plot in a terminal, and the maximum number of ticks of a page."""


class Line(NamedTuple):
    """Row of a forest plot; the numbers of `estimate` are NaN where unknown."""

    name: str
    rows: str
    estimate: Estimate
    number: str  # estimate and interval in words
    answer: str = ""
    is_mean: bool = False
    own: float = np.nan  # estimate from the institution's own rows


@dataclass(frozen=True)
class Forest:
    """Forest plot of one measure."""

    title: str
    show: Callable[[float], str]  # writes a value of the axis
    lines: list[Line]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Ends of the axis, which has 0."""
        values = np.array([line.estimate for line in self.lines]).ravel()
        values = values[np.isfinite(values)]
        reach = _REACH * float(np.median(np.abs(values))) if values.any() else 1.0
        reach = reach or float(np.abs(values).max())
        inside = np.append(values, 0.0).clip(-reach, reach)
        low, high = float(inside.min()), float(inside.max())
        edge = 0.04 * (high - low) or 1.0
        return low - edge, high + edge

    def at(self, value: float) -> float:
        """Return the place of a value on the axis, from 0 to 100."""
        low, high = self.ends
        return round(100 * float(np.clip((value - low) / (high - low), 0, 1)), 2)

    @property
    def ticks(self) -> Iterator[tuple[float, str]]:
        """Places and texts of round numbers."""
        low, high = self.ends
        steps = [m * 10.0**e for e in range(-9, 16) for m in (1, 2, 5)]
        step = next((each for each in steps if (high - low) / each <= _TICKS), high - low)
        for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1):
            yield self.at(k * step), self.show(k * step)

    def bar(self, line: Line) -> str:
        """Draw a row with characters."""
        at = [
            -1 if np.isnan(x) else round(self.at(x) / 100 * (_WIDTH - 1))
            for x in (*line.estimate, 0.0)
        ]
        cells = ["─" if 0 <= at[1] <= k <= at[2] else " " for k in range(_WIDTH)]
        cells[at[3]] = "│"
        if at[0] >= 0:
            cells[at[0]] = "◆" if line.is_mean else "■"
        return "".join(cells)

    def as_rich(self, limit: int) -> Table:
        """Return the plot of the first institutions and the means for a terminal of 80 columns."""
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("institution", overflow="fold", max_width=22)
        table.add_column("rows", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("gain (interval)", justify="right", no_wrap=True)
        has_answers = any(line.answer for line in self.lines)
        if has_answers:
            table.add_column("answer", overflow="fold")
        for line in self.lines[:limit] + [each for each in self.lines[limit:] if each.is_mean]:
            table.add_row(
                line.name, line.rows, self.bar(line), line.number, *[line.answer] * has_answers
            )
        return table
