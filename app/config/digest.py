"""Digest of the configuration that all processes of a run must share."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from coterie.app.config.config import Config

_NOT_BOUND = (
    *("device", "name", "resume", "preflight", "sealing", "track"),
    *("round-seconds", "join-seconds", "quorum"),
)
"""Keys that may differ between nodes, or between a run and its resumption."""


@lru_cache
def config_digest_of(config: Config) -> bytes:
    """Return the SHA-256 of the configuration keys that all peers of a run must share.

    Paths are excluded, because every node has its own.
    """
    free = config.paths | set(_NOT_BOUND)
    bound = {key: value for key, value in config.flat().items() if key not in free}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).digest()
