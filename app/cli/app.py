"""`coterie app`: write the Flower app to a folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runners import bundle


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write the app for `flwr run`, `flwr build` and `flwr install`."""
    parser.add_argument("directory", type=Path, help="a new or an empty folder")
    directory = parser.parse_args(arguments).directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists already: name a new or an empty folder")
    bundle.write_app(directory)
    console.print(f"wrote the Flower app to {directory}")
    setting = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
    if os.environ.get(setting) != "1":  # Flower installs the dependencies for every run
        console.print(f"before the first flwr run: export {setting}=1")
