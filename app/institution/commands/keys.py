"""`coterie keys`: make a peer's keys; put others' into a trust file, or remove them."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import nearest
from coterie.app.institution.commands.approve import confirm
from coterie.app.institution.security import clearance
from coterie.app.institution.security.trust import (
    Entry,
    KeysError,
    create,
    read_entries,
    read_trust,
)
from coterie.app.runs import atomic


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Make keys, or trust public keys."""
    commands = parser.add_subparsers(dest="what", required=True)
    new = commands.add_parser("new", help="make the keys of a peer")
    new.add_argument("name", help="of the peer, e.g. hospital-a")
    new.add_argument("--peer", type=int, help="its number in the runs, from 0")
    new.add_argument("--out", type=Path, default=Path("keys"), help="directory (keys)")
    trust = commands.add_parser("trust", help="add public keys to a trust file")
    trust.add_argument("public", nargs="+", type=Path, metavar="NAME.pub.toml")
    trust.add_argument("--peer", type=int, help="number of the peer, where its file has none")
    trust.add_argument("--file", type=Path, default=Path("trust.toml"), help="(trust.toml)")
    trust.add_argument("--replace", action="store_true", help="new keys of peers that are trusted")
    trust.add_argument("--yes", action="store_true", help="do not ask: fingerprints were compared")
    distrust = commands.add_parser("distrust", help="remove a peer from a trust file")
    distrust.add_argument("name", help="of the peer, e.g. hospital-c")
    distrust.add_argument("--file", type=Path, default=Path("trust.toml"), help="(trust.toml)")
    sheet = commands.add_parser("verify", help="check the signature of a clearance.json")
    sheet.add_argument("run", type=Path, metavar="RUN_DIR", help="directory with the file")
    sheet.add_argument("--file", type=Path, default=Path("trust.toml"), help="(trust.toml)")
    options = parser.parse_args(arguments)
    if options.what == "verify":
        _verify(options.run, options.file, console)
    elif options.what == "distrust":
        _distrust(options.name, options.file, console)
    elif options.peer is not None and options.peer < 0:
        raise KeysError(f"--peer {options.peer}: peers are numbered from 0")
    elif options.what == "new":
        private, public, entry = create(options.name, options.out, options.peer)
        console.print(f"private keys: {private}  (stays here; node-config keys)")
        console.print(f"public keys:  {public}  (for the others' trust files)")
        _print_fingerprint(entry, console)
    else:
        _trust(options, console)


def _verify(directory: Path, trust: Path, console: Console) -> None:
    content, known = clearance.read(directory), read_trust(trust)
    if content is None or (entry := known.get(content["peer"])) is None:
        raise KeysError(f"{directory} has no clearance.json of a peer in {trust}")
    clearance.verify(content, entry.keys)
    console.print(clearance.page(content), markup=False, soft_wrap=True)
    console.print(f"valid: {entry.name} (peer {entry.peer}) signed this sheet")


def _distrust(name: str, target: Path, console: Console) -> None:
    known = {entry.name: entry for entry in read_entries(target)}
    if name not in known:
        raise KeysError(f"{target} has no entry [{name}]{nearest(name, list(known))}")
    kept = [entry.toml() for entry in known.values() if entry.name != name]
    atomic.write(target, "\n".join(kept))
    target.chmod(0o644)
    console.print(f"{target} no longer trusts {name}")


def _trust(options: argparse.Namespace, console: Console) -> None:
    """Add entries of public files to a trust file, or replace them, all or none, if confirmed."""
    target: Path = options.file
    entries = [entry for file in options.public for entry in read_entries(file)]
    if options.peer is not None:
        if len(entries) != 1:
            raise KeysError(f"--peer {options.peer} is for one peer, not {len(entries)}")
        entries = [replace(entries[0], peer=options.peer)]
    before = target.read_text(encoding="utf-8-sig") if target.exists() else ""
    known = {entry.name: entry for entry in read_entries(target)} if before else {}
    if options.replace:
        if new := [entry.name for entry in entries if entry.name not in known]:
            raise KeysError(f"{target} has no entry [{new[0]}] to replace: leave out --replace")
        numbers = {name: entry.peer for name, entry in known.items()}
        entries = [replace(e, peer=numbers[e.name] if e.peer is None else e.peer) for e in entries]
        replaced = {entry.name for entry in entries}
        before = "\n".join(old.toml() for name, old in known.items() if name not in replaced)
    elif again := [entry.name for entry in entries if entry.name in known]:
        raise KeysError(
            f"{target} has an entry [{again[0]}] already: add --replace if that peer has new keys"
        )
    with atomic.replacing(target) as draft:
        draft.write_text(before + "".join(f"\n{e.toml()}" for e in entries), encoding="utf-8")
        draft.chmod(0o644)
        try:
            read_trust(draft)
        except KeysError as error:
            raise KeysError(str(error).replace(str(draft), str(target))) from None
        for entry in entries:
            if entry.name in known:
                _print_fingerprint(known[entry.name], console, "old keys of ")
            _print_fingerprint(entry, console, "new keys of " if entry.name in known else "")
        if not options.yes:
            confirm(
                "Compare the fingerprints over another channel. Type yes to trust: ",
                "not trusted",
                "compare the fingerprints over another channel, then add --yes",
            )
    console.print(f"trusted in {target}")


def _print_fingerprint(entry: Entry, console: Console, what: str = "") -> None:
    number = "" if entry.peer is None else f" (peer {entry.peer})"
    console.print(f"{what}{entry.name}{number}: {entry.keys.fingerprint}")
