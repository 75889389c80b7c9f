"""Output of commands: a terminal that keeps its text, and rows of CSV files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console, RenderableType


class Terminal(Console):
    def __init__(self, width: int = 200, *, force_terminal: bool | None = None) -> None:
        super().__init__(file=io.StringIO(), width=width, force_terminal=force_terminal)

    @property
    def text(self) -> str:
        assert isinstance(self.file, io.StringIO)
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def printed(what: RenderableType, width: int = 80) -> str:
    terminal = Terminal(width)
    terminal.print(what)
    return terminal.text


def csv_rows(of: Path | str) -> list[dict[str, str]]:
    """Read the rows of a CSV file, or of its text."""
    text = of.read_text(encoding="utf-8") if isinstance(of, Path) else of
    return list(csv.DictReader(io.StringIO(text)))
