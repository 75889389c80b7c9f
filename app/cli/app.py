"""`coterie app`: write the Flower app to a folder."""

from __future__ import annotations

import argparse
import os

from rich.console import Console

from coterie.app.cli.named import new_folder
from coterie.app.runners import bundle


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write the app for `flwr run`, `flwr build` and `flwr install`."""
    directory = new_folder(parser, arguments)
    bundle.write_app(directory)
    console.print(f"wrote the Flower app to {directory}")
    setting = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
    if os.environ.get(setting) != "1":  # Flower installs the dependencies for every run
        console.print(f"before the first flwr run: export {setting}=1")
