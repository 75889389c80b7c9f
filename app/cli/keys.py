"""`coterie keys`: make a peer's keys, and put others' public keys into a trust file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.security.trust import Entry, KeysError, create, read_entries, read_trust


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Make keys, or add public keys to a trust file."""
    commands = parser.add_subparsers(dest="what", required=True)
    new = commands.add_parser("new", help="make the keys of a peer")
    new.add_argument("name", help="of the peer, e.g. hospital-a")
    new.add_argument("--peer", type=int, help="its number in the runs, from 0")
    new.add_argument("--out", type=Path, default=Path("keys"), help="directory (keys)")
    trust = commands.add_parser("trust", help="add public keys to a trust file")
    trust.add_argument("public", nargs="+", type=Path, metavar="NAME.pub.toml")
    trust.add_argument("--peer", type=int, help="number of the peer, where its file has none")
    trust.add_argument("--file", type=Path, default=Path("trust.toml"), help="(trust.toml)")
    try:
        _manage(parser.parse_args(arguments), console)
    except KeysError as error:
        raise ConfigError(str(error)) from None


def _manage(options: argparse.Namespace, console: Console) -> None:
    """Execute one of the two commands.

    Raises
    ------
    KeysError
        A file exists already, is missing or is invalid; nothing was changed.
    """
    if options.peer is not None and options.peer < 0:
        raise KeysError(f"--peer {options.peer}: peers are numbered from 0")
    if options.what == "new":
        private, public, entry = create(options.name, options.out, options.peer)
        console.print(f"private keys: {private}  (stays here; node-config keys)", soft_wrap=True)
        console.print(f"public keys:  {public}  (for the others' trust files)", soft_wrap=True)
        _show(entry, console)
    else:
        _trust(options.public, options.peer, options.file, console)


def _trust(files: Sequence[Path], peer: int | None, target: Path, console: Console) -> None:
    """Append the entries of some public files to a trust file, all or none."""
    entries = [entry for file in files for entry in read_entries(file)]
    if peer is not None:
        if len(entries) != 1:
            raise KeysError(f"--peer {peer} is for one peer, not {len(entries)}")
        entries = [replace(entries[0], peer=peer)]
    known = {entry.name for entry in read_entries(target)} if target.exists() else set()
    for entry in entries:
        if entry.name in known:
            raise KeysError(f"{target} has an entry [{entry.name}] already: remove it first")
        known.add(entry.name)
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    with atomic.replacing(target) as draft:
        text = before + "".join(f"\n{entry.toml()}" for entry in entries)
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o644)
        try:
            read_trust(draft)
        except KeysError as error:
            raise KeysError(str(error).replace(str(draft), str(target))) from None
    for entry in entries:
        _show(entry, console)
    console.print(f"in {target}. Compare fingerprints over another channel.", soft_wrap=True)


def _show(entry: Entry, console: Console) -> None:
    number = "" if entry.peer is None else f" (peer {entry.peer})"
    console.print(f"{entry.name}{number}: {entry.keys.fingerprint}", soft_wrap=True)
