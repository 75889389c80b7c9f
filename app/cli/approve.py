"""`coterie approve`: let one run of a configuration start on this node.

Before the run has come, a preset is approved, as the institutions have agreed on it; afterwards, or
where the preset is not at hand, the configuration that the node was sent.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.items import read_items, read_toml
from coterie.app.config.keys import ConfigError
from coterie.app.security import approval
from coterie.app.security.approval import DecisionError


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Show a configuration and approve it."""
    parser.add_argument("items", nargs="+", metavar="RUN_DIR | PRESET.toml|key=value")
    parser.add_argument("--out", type=Path, help="the node's `out`, with a preset")
    given = parser.parse_intermixed_args(arguments)
    directory = Path(given.items[0])
    if directory.is_dir():
        if given.out or len(given.items) > 1:
            raise ConfigError(f"{directory} is a run of this node: give it alone")
        try:
            flat = read_toml(approval.newest_config(directory))
        except DecisionError as error:
            raise ConfigError(str(error)) from None
        out = directory.absolute().parent
    else:
        if given.out is None:
            raise ConfigError("say where the node keeps its runs: --out DIRECTORY, as its `out`")
        _, flat = read_items(given.items)
        out = given.out
    if sys.platform != "win32" and out.exists() and out.stat().st_uid != os.geteuid():
        raise ConfigError(f"{out} is another user's: approve as the user that runs the node")
    config = Config.from_flat(flat)
    digest = config_digest_of(config).hex()
    approval.approve(out, digest)
    console.print(config.toml().rstrip())
    console.print(f"\napproved, for one run: {digest}", soft_wrap=True)
