"""Encryption settings of a node: keys and trusted peers; a run cannot change those deployed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.trust import (
    Entry,
    KeysError,
    create,
    read_private,
    read_trust,
)


@dataclass(frozen=True)
class Sealing:
    """Encryption settings: with keys plain letters are refused, without keys encrypted ones."""

    config_digest: bytes  # see `config_digest_of`
    keys: tuple[tuple[int, str], ...] = ()  # (hosted peer, file of its private keys)
    trust: str = ""
    audited: bool = False  # there is an audit log

    def read(self) -> tuple[dict[int, PrivateKeys], Mapping[int, Entry]]:
        """Read the keys of the hosted peers and of all trusted ones, which must agree."""
        keys = {peer: read_private(Path(path)) for peer, path in self.keys}
        trust = read_trust(Path(self.trust))
        for peer, path in self.keys:
            if peer in trust and trust[peer].keys != keys[peer].public:
                raise KeysError(
                    f"{self.trust}: [{trust[peer].name}] is peer {peer}, but not the public half "
                    f"of {path}"
                )
        return keys, trust


def simulated(config: Config, peers: Sequence[int], directory: Path) -> Sealing:
    """Return the settings of a simulated node: plain letters, or keys made for this run."""
    config_digest = config_digest_of(config)
    if config.sealing is not True:
        return Sealing(config_digest)
    shared = directory / "keys"
    if not shared.exists():
        _make_keys(shared, config.peers)
    keys = tuple((peer, str(shared / f"{_file_name(peer)}.key")) for peer in peers)
    return Sealing(config_digest, keys, str(shared / "trust.toml"), audited=True)


def deployed(
    config: Config, node_config: Mapping[str, object], peer: int, *, required: bool = True
) -> Sealing:
    """Return the settings of a SuperNode from --node-config; `required`: the policy wants them."""
    keys, trust = (str(node_config.get(key, "")) for key in ("keys", "trust"))
    plain = config.sealing is False
    if bool(keys) != bool(trust):
        raise KeysError('to seal, a SuperNode needs keys="FILE" and trust="FILE" in --node-config')
    if keys and plain:
        raise KeysError("this SuperNode has keys and takes no part in a run with sealing = false")
    if not keys and (required or not plain):
        raise KeysError(
            "this SuperNode has no keys to seal with: make them (coterie keys new NAME) and "
            'start it with keys="FILE" trust="FILE" in --node-config'
        )
    of_peer = ((peer, keys),) if keys else ()
    return Sealing(config_digest_of(config), of_peer, trust, audited=True)


def peer_of(node_config: Mapping[str, object]) -> int | None:
    """Return the peer with the SuperNode's `name` in its trust file; None without name or file."""
    name, trust = node_config.get("name"), node_config.get("trust")
    if not name or not trust:
        return None
    for entry in read_trust(Path(str(trust))).values():
        if entry.name == name:
            return entry.peer
    raise KeysError(f"{trust} has no entry [{name}], and --node-config has no peer = K")


def _make_keys(shared: Path, peers: int) -> None:
    """Make the keys of all simulated peers; one of several concurrent nodes succeeds."""
    shared.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=shared.parent, prefix="keys-"))
    entries = [create(_file_name(peer), part, peer)[2] for peer in range(peers)]
    trust = part / "trust.toml"
    trust.write_text("".join(entry.toml() for entry in entries), encoding="utf-8")
    trust.chmod(0o644)
    try:
        part.rename(shared)
    except OSError:  # another node was faster
        shutil.rmtree(part)


def _file_name(peer: int) -> str:
    return f"peer-{peer:04d}"
