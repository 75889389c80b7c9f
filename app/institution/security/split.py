"""Seed of a deployed node's division of own data into training, validation and test part.

With the run's seed the relay would know which rows a number is about, and could solve for their
labels after enough runs. This seed comes from a secret of the node, `institution/split.key` of its
`out`, and from the run's keys of data and model, so all methods have the same test part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path

from coterie.app.config.config import Config
from coterie.app.institution.security.files import closed
from coterie.app.institution.security.trust import KeysError
from coterie.app.runs import atomic

_FILE = "split.key"
_BYTES = 32
_BITS = 63  # valid seed of every random generator


def split_seed(own: Path, config: Config) -> int:
    """Return the seed of a run's split here; KeysError if the secret in `own` is damaged."""
    tables = {config.table_of("dataset"), config.table_of("model"), "model"}
    bound = {
        key: value
        for key, value in config.flat().items()
        if (key in ("seed", "dataset", "model", "dtype") or key.partition(".")[0] in tables)
        and key not in (config.validation[0], *config.paths)  # methods differ in the former
    }
    text = json.dumps(bound, sort_keys=True).encode()
    digest = hmac.digest(secret(own), text, hashlib.sha256)
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)


def data_key(own: Path) -> bytes:
    """Return the key of this node's digests of its data; KeysError as `split_seed`."""
    return hmac.digest(secret(own), b"data.json", hashlib.sha256)


def secret(own: Path) -> bytes:
    """Read the secret of a node; draw it on the first call. KeysError: it is damaged."""
    file = own / _FILE
    with closed(), atomic.locked(file.with_suffix(".lock")):
        if not file.exists():
            atomic.write(file, secrets.token_bytes(_BYTES))
    content = file.read_bytes()
    if len(content) != _BYTES:
        raise KeysError(
            f"{file} has {len(content)} bytes instead of {_BYTES}: put it back, or remove it to "
            "divide the data again"
        )
    return content
