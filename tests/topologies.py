"""Topologies by name, as a configuration makes them."""

from __future__ import annotations

from typing import Any

from coterie.strategies.push_sum import Matrix
from coterie.strategies.topology import TOPOLOGIES, AveragingWeights, Links, Setting


def topology(kind: str, peers: int, seed: int, **options: Any) -> Matrix:
    return TOPOLOGIES[kind].matrix(Setting(peers, seed, **options))


def changing(kind: str, peers: int, seed: int, *, directed: bool, **options: Any) -> Links | None:
    return TOPOLOGIES[kind].links(Setting(peers, seed, **options), directed=directed)


def mixing(kind: str, peers: int, **options: Any) -> AveragingWeights | None:
    return TOPOLOGIES[kind].mixing(Setting(peers, **options))
