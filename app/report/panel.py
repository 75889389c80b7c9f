"""A section with paragraphs, a table and lists of lines: the usual form of results on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import RenderableType

from coterie.app.report.section import Section


class Heading(NamedTuple):
    """Heading of a column, its explanation and CSS classes."""

    title: str
    better: str | None = None  # end that is better, "high", "low" or ""; None: not sorted
    about: str | None = None
    mark: str | None = None


class Cell(NamedTuple):
    """Cell: its text, a second line, the number that sorts it, CSS classes and tooltip."""

    text: str
    small: str = ""
    value: float | None = None
    mark: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Panel(Section):
    """Section with a table, whose rows are a name and cells; no table without rows."""

    id: str
    heading: str
    about: Sequence[str] = ()
    columns: Sequence[Heading] = ()
    rows: Sequence[tuple[str, Sequence[Cell]]] = ()
    groups: Sequence[tuple[str, int]] = ()  # headings over numbers of columns
    kind: str = ""  # CSS class of the table
    notes: Sequence[str] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by heading
    printed: Sequence[RenderableType] = ()
    written: Mapping[str, str] = field(default_factory=dict)

    template = "panel.html.j2"

    def lines(self) -> Sequence[RenderableType]:
        return self.printed

    def files(self) -> Mapping[str, str]:
        return self.written
