"""Keys that all processes of a run must share, and those that decide its results."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from coterie.app.config import schema
from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import keys, options_in
from coterie.datasets.partition.kinds import KINDS


@lru_cache
def config_digest_of(config: Config) -> bytes:
    """Return the SHA-256 of the keys that all peers of a run must share, paths excluded."""
    return hashlib.sha256(json.dumps(bound(config), sort_keys=True).encode()).digest()


def bound(config: Config) -> dict[str, Scalar]:
    """Return the configuration keys that the digest covers."""
    known = config.known
    return {
        key: value
        for key, value in config.flat().items()
        if known[key][1].scope == "run" and not known[key][1].is_path
    }


def result_keys(config: Config) -> dict[str, Scalar]:
    """Return the keys that decide the results of a run, without those of features that are off."""
    flat = {
        **config.flat(),
        **{f"model.{key}": value for key, value in schema.values(config.adaptation).items()},
        "model": config.network,
        "attack.strength": config.attack.power,
    }
    unused = {key for key, (_, each) in keys().items() if each.scope != "run"}
    unused |= set(_unused(config))
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
        "clearance": config.clearance,
        "clock.": has_clock,
        "defence.tolerate": config.defence.rule != "none",
        "evaluate-peers": config.schedule.kind != "all" or has_clock,
        "learning-rate-decay-every": (
            config.training.learning_rate_schedule != "step"
            or config.training.learning_rate_decay < 1
        ),
        "letters.": config.letters.scheme != "full",
        "mixing": config.row.mixes,
        "model.lora-alpha": config.adaptation.lora_rank > 0,
        "model.lora-layers": config.adaptation.lora_rank > 0,
        "peer-models": len(config.kinds) > 1,
        "privacy.": config.privacy.kind != "none",
        "schedule.": config.schedule.kind != "all" or has_clock,
        "topology-degree": config.topology not in ("full", "ring"),
        "weight-decay-on": (
            config.training.weight_decay > 0 and config.training.weight_decay_on != "all"
        ),
        **{
            f"partition.{key}": kind not in KINDS or kind in each.used_by
            for key, each in options_in("partition").items()
            if each.used_by
        },
    }
    return [key for key, is_used in uses.items() if not is_used]
