"""Text on a terminal: what it obeys, or shows in another order than it stands, is spelt out."""

from __future__ import annotations

from typing import Any
from unicodedata import category

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    r"""Return a text in which control and direction characters stand as "\x1b" or "\u202e"."""
    if text.isprintable():
        return text
    return "".join(
        # Python calls no space printable but one.
        char if char.isprintable() or char == "\n" or category(char) == "Zs" else ascii(char)[1:-1]
        for char in text
    )


class Terminal(Console):
    """A console for text that may come from anywhere: names of folders, files of others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **how: Any) -> Text:
        """Convert a string, wherever it stands in what is printed."""
        return super().render_str(printable(text), **how)
