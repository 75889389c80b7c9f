"""Pages as lists of sections, each made by a function of a `Run` or `Comparison`, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType

from coterie.app.report import html
from coterie.app.runs import atomic

Source = TypeVar("Source")


class Section:
    """Part of the results: its place on the page, its lines in a terminal, its files."""

    template: str
    """Template that shows it as `section`; "" for a part that is not on the page."""

    def lines(self) -> Iterable[RenderableType]:
        """Return what a terminal shows."""
        return ()

    def files(self) -> Mapping[str, str]:
        """Return the files to write, by name."""
        return {}

    def data(self) -> Mapping[str, Any]:
        """Return what the scripts of the page draw."""
        return {}


@dataclass(frozen=True)
class Part(Section):
    """A template, and the data that the scripts of the page draw in it."""

    template: str
    drawn: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> Mapping[str, Any]:
        return self.drawn


Sections = Sequence[Callable[[Source], Section | None]]


@dataclass(frozen=True)
class Page:
    """Page of a run or a comparison: its file, the template and values of its frame, sections."""

    file: str
    template: str
    values: Mapping[str, Any]
    sections: Sequence[Section]

    def content(self) -> dict[str, Any]:
        """Return the values that fill the template."""
        data = dict(self.values["data"])
        for section in self.sections:
            data |= section.data()
        return {**self.values, "sections": self.sections, "data": data}

    def write(self, directory: Path) -> Path:
        """Write the files of the sections and the page; return the path of the page."""
        for section in self.sections:
            for name, text in section.files().items():
                atomic.write(directory / name, text)
        atomic.write(directory / self.file, html.render(self.template, **self.content()))
        return directory / self.file

    def show(self, console: Console) -> None:
        for section in self.sections:
            for line in section.lines():
                shown = line.replace("\N{NO-BREAK SPACE}", " ") if isinstance(line, str) else line
                console.print(shown, soft_wrap=isinstance(line, str), markup=False)


def made(makers: Sections[Source], source: Source) -> list[Section]:
    """Return the sections that a source has."""
    return [section for make in makers if (section := make(source)) is not None]
