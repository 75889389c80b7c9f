"""Terminal output with control and direction characters escaped."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    r"""Return a text with control and direction characters escaped, as in "\x1b" or "\u202e"."""
    if text.isprintable():
        return text
    return "".join(
        # Python calls no space printable but one.
        char if char.isprintable() or char == "\n" or category(char) == "Zs" else ascii(char)[1:-1]
        for char in text
    )


def add_json(parser: ArgumentParser, what: str) -> None:
    """Add the option of commands that print a document instead of lines."""
    parser.add_argument(
        "--json", action="store_true", help=f"print {what} as JSON, and all else to standard error"
    )


class Terminal(Console):
    """Console for untrusted text, such as names of folders and content of files."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print objects; texts are not wrapped, so that paths and commands can be copied."""
        how.setdefault("soft_wrap", all(isinstance(each, str) for each in objects))
        super().print(*objects, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **how)
