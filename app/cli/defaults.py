"""`coterie defaults`: bring pyproject.toml up to date with the option dataclasses."""

from __future__ import annotations

import argparse

from rich.console import Console

from coterie.app.config import defaults
from coterie.app.config.root import ROOT


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write every key with its default."""
    parser.parse_args(arguments)
    path = ROOT / "pyproject.toml"
    path.write_text(defaults.written_into(path.read_text("utf-8")), encoding="utf-8")
    console.print(f"wrote every key with its default to {path}")
