"""Newcomers: peers that join a run at the end, drawn by its seed (the key `late-peers`)."""

from __future__ import annotations

import numpy as np

from coterie.app.config.config import Config

LATE = 0.2
"""Share of the rounds, at the end of a run, in which newcomers take part."""
_NEWCOMERS = 0x4EC0
"""Purpose of the random stream."""


def newcomers_of(config: Config) -> tuple[int, ...]:
    """Return the peers that join late, ascending; empty without `late-peers`."""
    if not config.late_peers:
        return ()
    count = min(max(1, round(config.late_peers * config.peers)), config.peers - 1)
    drawn = np.random.default_rng([config.seed, _NEWCOMERS]).permutation(config.peers)[:count]
    return tuple(sorted(drawn.tolist()))


def join_round(config: Config) -> int:
    """Return the round after which the newcomers take part."""
    return config.num_server_rounds - max(1, round(LATE * config.num_server_rounds))
