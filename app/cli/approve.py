"""`coterie approve`: let one run of a configuration start on this node.

Before the run arrives, the agreed preset is approved; afterwards, or without the preset, the
configuration that the node received. The approval is for the digest of the configuration shown: a
configuration that arrives in the meantime needs another approval.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.items import read_items, read_toml
from coterie.app.config.keys import ConfigError
from coterie.app.config.preflight import scale_of
from coterie.app.security import approval
from coterie.app.security.approval import DecisionError

_STATISTICS = (
    '# table.scale: unless data.share-statistics of the policy is "no", this node sends count, '
    "mean and variance\n# of each number column of the training examples, rounded to three "
    "significant digits, to the institutions\n# in its trust file, before round 1. Afterwards "
    "statistics-....csv in the run directory has them.\n"
)


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Show a configuration, ask for confirmation, and approve it."""
    parser.add_argument("items", nargs="+", metavar="RUN_DIR | PRESET.toml|key=value")
    parser.add_argument("--out", type=Path, help="the node's `out`, with a preset")
    parser.add_argument("--digest", help="of the configuration to approve, instead of being asked")
    options = parser.parse_intermixed_args(arguments)
    directory = Path(options.items[0])
    if directory.is_dir():
        if options.out or len(options.items) > 1:
            raise ConfigError(f"{directory} is a run of this node: pass nothing else")
        config = _arrived(directory)
        out = directory.absolute().parent
    else:
        if options.out is None:
            raise ConfigError("missing --out DIRECTORY: the node's `out`")
        config = Config.from_flat(read_items(options.items, deployed=True)[1])
        out = options.out
    if sys.platform != "win32" and out.exists() and out.stat().st_uid != os.geteuid():
        raise ConfigError(f"{out} is another user's: approve as the user that runs the node")
    digest = config_digest_of(config).hex()
    if scale_of(config) == "common":
        console.print(_STATISTICS, soft_wrap=True, markup=False)
    console.print(config.toml().rstrip(), soft_wrap=True)
    console.print(f"\nThe digest of this configuration: {digest}", soft_wrap=True)
    _ask(digest, options.digest)
    approval.approve(out, digest)
    console.print(f"approved, for one run: {digest}", soft_wrap=True)


def _arrived(directory: Path) -> Config:
    """Return the configuration of a run that was sent to this node.

    Raises
    ------
    ConfigError
        No run arrived, or the file was changed since.
    """
    try:
        file, digest = approval.newest_config(directory)
        config = Config.from_flat(read_toml(file))
    except DecisionError as error:
        raise ConfigError(str(error)) from None
    if config_digest_of(config).hex() != digest:
        raise ConfigError(f"{file} was changed: it is not the configuration that was received")
    return config


def _ask(digest: str, wanted: str | None) -> None:
    """Ask a person to approve the configuration shown, or compare its digest with `wanted`.

    Raises
    ------
    ConfigError
        It is not approved.
    """
    if wanted is None and sys.stdin.isatty():
        if not confirmed("Type yes to approve one run of it: "):
            raise ConfigError("not approved")
    elif wanted is None:
        raise ConfigError(f"not approved: no terminal to ask; add --digest {digest}")
    elif wanted != digest:
        raise ConfigError("not approved: the digest of this configuration differs from --digest")


def confirmed(question: str) -> bool:
    """Return whether a person at the terminal types yes."""
    answer = ""
    with suppress(EOFError):
        answer = input(question)
    return answer.strip().lower() == "yes"
