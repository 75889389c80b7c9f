"""`coterie plugin`: write a package with a part of each kind, to start from."""

from __future__ import annotations

import argparse
import shutil

from rich.console import Console

from coterie.app.cli.named import new_folder
from coterie.app.config.root import ROOT

_BUILT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Copy the example package."""
    directory = new_folder(parser, arguments)
    shutil.copytree(ROOT / "examples/plugin", directory, ignore=_BUILT, dirs_exist_ok=True)
    console.print(f"wrote {directory}: README.md says what is in it; keep what you need, rename it")
