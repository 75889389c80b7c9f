"""Keys that all processes of a run must share, and those that decide its results."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from coterie.app.config import schema
from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.datasets.partition.kinds import KINDS

_NOT_BOUND = (
    *("device", "name", "resume", "preflight", "sealing", "track"),
    *("round-seconds", "join-seconds", "quorum"),
)
"""Keys that may differ between nodes, or between a run and its resumption."""
_PLACE = (*_NOT_BOUND, "out", "run-dir", "trust")
"""Keys that decide no result of a run."""
_DIRICHLET = {"dirichlet", "label-groups-dirichlet"}
_CLUSTERED = {"label-groups", "label-permutation", "rotation"}
KINDS_WITH = {
    "partition.alpha": _DIRICHLET,
    "partition.class-counts": {"class-counts"},
    "partition.classes-per-peer": {"pathological"},
    "partition.cluster-sizes": _CLUSTERED,
    "partition.clusters": {*_CLUSTERED, "label-groups-dirichlet"},
    "partition.flip-fraction": {"label-flip"},
    "partition.min-samples": {*_DIRICHLET, "pathological", "natural"},
    "partition.missing-classes": {"natural"},
}
"""Key of a partition -> built-in kinds that use it."""


@lru_cache
def config_digest_of(config: Config) -> bytes:
    """Return the SHA-256 of the configuration keys that all peers of a run must share.

    Paths are excluded, because every node has its own.
    """
    return hashlib.sha256(json.dumps(bound(config), sort_keys=True).encode()).digest()


def bound(config: Config) -> dict[str, Scalar]:
    """Return the configuration keys that the digest covers."""
    free = config.paths | set(_NOT_BOUND)
    return {key: value for key, value in config.flat().items() if key not in free}


def deciding(config: Config) -> dict[str, Scalar]:
    """Return the keys that decide the results of a run, defaults included.

    Keys of a feature that the run does not use are left out: a new default of theirs changes no
    result.
    """
    flat = {
        **config.flat(),
        **{f"model.{key}": value for key, value in schema.values(config.adaptation).items()},
        "model": config.network,
        "attack.strength": config.attack.power,
    }
    unused = {*_PLACE, *_unused(config)}
    return {
        key: value
        for key, value in flat.items()
        if key not in unused and f"{key.partition('.')[0]}." not in unused
    }


def _unused(config: Config) -> list[str]:
    """Return the keys that this run does not use; "attack." stands for all keys of the table."""
    has_clock, kind = config.clock.profile != "none", config.partition.kind
    uses = {
        "attack.": config.attack.kind != "none",
        "clock.": has_clock,
        "defence.tolerate": config.defence.rule != "none",
        "learning-rate-decay-every": (
            config.learning_rate_schedule != "step" or config.learning_rate_decay < 1
        ),
        "letters.": config.letters.scheme != "full",
        "mixing": config.row.mixes,
        "model.lora-alpha": config.adaptation.lora_rank > 0,
        "model.lora-layers": config.adaptation.lora_rank > 0,
        "privacy.": config.privacy.kind != "none",
        "schedule.": config.schedule.kind != "all" or has_clock,
        "topology-degree": config.topology not in ("full", "ring"),
        "topology-probability": config.topology not in ("full", "ring"),
        **{key: kind not in KINDS or kind in kinds for key, kinds in KINDS_WITH.items()},
    }
    return [key for key, is_used in uses.items() if not is_used]
