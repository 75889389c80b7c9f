"""`coterie dashboard`: show runs and comparisons in progress on a local page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.dashboard import address

_NICE = 10  # runs have priority


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Print the address and serve pages until interrupted."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("run_dir", nargs="?", type=Path, help="only this run")
    place.add_argument("--out", type=Path, help="directory of run directories (runs)")
    port = f"on 127.0.0.1 ({address.PORT}, or one that is free)"
    parser.add_argument("--port", type=int, help=port)
    options = parser.parse_args(arguments)
    if options.run_dir and not options.run_dir.is_dir():
        raise ConfigError(f"{options.run_dir}: no such run directory")
    token = address.token()
    with address.listen(options.port) as listener:
        number = listener.getsockname()[1]
        console.print(f"http://{address.HOST}:{number}/{token}/")
        os.nice(_NICE)
        # The imports take seconds, for which a browser that is there already waits.
        from coterie.app.dashboard.library import Library
        from coterie.app.dashboard.pages import Pages
        from coterie.app.dashboard.server import Server

        pages = Pages(Library(options.run_dir or options.out or Path("runs")))
        Server(pages, token, listener).serve_forever()
