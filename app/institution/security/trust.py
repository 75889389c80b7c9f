"""Key files: a peer's private keys, its public entry, and the trust file of a node.

An entry is a TOML table under the peer's name; a trust file is a sequence of such tables,
exchanged out of band:

    [hospital-a]
    peer = 0
    sign = "..."
    seal = "..."
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm

from coterie.app.institution.security.files import closed, writable_by_others
from coterie.app.institution.security.keys import SEAL_BYTES, SIGN_BYTES, PrivateKeys, PublicKeys
from coterie.errors import Error
from coterie.strategies.names import RULE, is_name


class KeysError(Error, ValueError):
    """A key, trust or secret file is missing or wrong; names the file and the remedy."""


@dataclass(frozen=True)
class Entry:
    """Table of a trust file."""

    name: str
    peer: int | None  # its number in runs; None if a public file does not state it
    keys: PublicKeys
    node: str = ""  # OpenSSH key of its SuperNode, for the relay; "" in files of `keys new`

    def table(self) -> dict[str, str | int]:
        """Return the keys of the TOML table."""
        sign, seal = (base64.b64encode(k).decode() for k in (self.keys.sign, self.keys.seal))
        table = {"peer": self.peer, "sign": sign, "seal": seal, "node": self.node or None}
        return {key: value for key, value in table.items() if value is not None}

    def toml(self) -> str:
        """Return the TOML table."""
        return tomli_w.dumps({self.name: self.table()})


def create(name: str, directory: Path, peer: int | None = None) -> tuple[Path, Path, Entry]:
    """Make a peer's new keys: `<name>.key` (mode 0600) and `<name>.pub.toml` in `directory`."""
    checked(name)
    private, public = directory / f"{name}.key", directory / f"{name}.pub.toml"
    with closed(0o022):  # not by umask: see read_private
        directory.mkdir(parents=True, exist_ok=True)
    for path in (private, public):
        if path.exists():
            raise KeysError(f"{path} exists already: keys are never overwritten")
    keys = PrivateKeys.generate()
    entry = Entry(name, peer, keys.public)
    with closed(), private.open("xb") as file:
        file.write(keys.pem())
    public.write_text(entry.toml(), encoding="utf-8")
    return private, public, entry


def checked(name: str) -> str:
    """Return the name of a peer; KeysError if it is invalid."""
    if not is_name(name):
        raise KeysError(f"{name!r} is not a valid name of a peer: use {RULE}")
    return name


def read_private(path: Path) -> PrivateKeys:
    """Read a file of `create`; KeysError: missing, invalid, or others may read or replace it."""
    try:
        if path.stat().st_mode & 0o077:
            raise KeysError(f"{path} is open to others: chmod 600 {path}")
        if how := writable_by_others(path):
            raise KeysError(f"private keys {path}: {how}")
        return PrivateKeys.from_pem(path.read_bytes())
    except OSError as error:
        raise KeysError(f"private keys {path}: {error.strerror}") from None
    except KeysError:
        raise
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeysError(f"private keys {path}: {error}") from None


def read_entries(path: Path) -> list[Entry]:
    """Read the tables of a public file or a trust file; the KeysError names the table."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise KeysError(f"{path} is not TOML: {error}") from None
    return [entry_of(path, name, table) for name, table in tables.items()]


def read_trust(path: Path) -> Mapping[int, Entry]:
    """Read a trust file that only its owner may change: peer -> its expected entry."""
    if path.exists() and (how := writable_by_others(path)):
        raise KeysError(f"{path}: {how}")
    trust: dict[int, Entry] = {}
    for entry in read_entries(path):
        if entry.peer is None:
            raise KeysError(f"{path}: [{entry.name}] has no number: add peer = K to it")
        for other in trust.values():
            if other.peer == entry.peer:
                raise KeysError(f"{path}: {other.name} and {entry.name} are both peer {entry.peer}")
            if {other.keys.sign, other.keys.seal} & {entry.keys.sign, entry.keys.seal}:
                raise KeysError(f"{path}: {other.name} and {entry.name} have the same keys")
        trust[entry.peer] = entry
    return trust


def entry_of(path: Path, name: str, table: Any) -> Entry:
    """Return the entry of a table of a file; KeysError: a key is missing, unknown or invalid."""
    checked(name)
    needed = {"sign", "seal"}
    if not isinstance(table, dict) or not needed <= table.keys() <= needed | {"peer", "node"}:
        raise KeysError(f"{path}: [{name}] needs sign and seal, and may have peer and node alone")
    peer = table.get("peer")
    if peer is not None and (type(peer) is not int or peer < 0):
        raise KeysError(f"{path}: [{name}] peer = {peer!r} is not a valid number of a peer")
    sign = _key(path, name, "sign", table["sign"], SIGN_BYTES)
    seal = _key(path, name, "seal", table["seal"], SEAL_BYTES)
    try:
        return Entry(name, peer, PublicKeys(sign, seal), str(table.get("node", "")))
    except ValueError as error:
        raise KeysError(f"{path}: [{name}] has an invalid key: {error}") from None


def _key(path: Path, name: str, field: str, text: object, size: int) -> bytes:
    try:
        key = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        key = b""
    if len(key) != size:
        raise KeysError(f"{path}: [{name}] {field} is not the base64 of {size} bytes")
    return key
