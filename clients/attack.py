"""The [attack] table: which peers lie, and how (`coterie.app.node.attackers` does the lying)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.clients.engine.streams import Purpose, stream

Kind = Literal[
    "none",
    "nan",
    "scale",
    "sign-flip",
    "gaussian",
    "label-flip",
    "label-flip-alone",
    "ipm",
    "alie",
    "mimic",
    "stale",
    "samples",
]
USUAL = {
    "scale": 10.0,
    "sign-flip": 1.0,
    "gaussian": 1.0,
    "ipm": 0.5,
    "alie": 1.5,
    "samples": 1000.0,
}
"""Kind -> its strength where none is given; the other kinds have none."""


@dataclass(frozen=True)
class Attack:
    """The [attack] table: some peers lie in what they send. For simulations.

    What an attacker sends, models as well as answers, is replaced after its rule has spoken, from
    what it knows itself: its own letter y, and the honest letters that it heard in the last round
    (models) or its own answers to everybody (answers), with mean m and deviation s in each
    coordinate. r is m for models and 0 for answers. An attacker that has heard nothing yet has no m
    and sends y where m is needed.

    Attributes
    ----------
    kind : what is sent: "nan"; "scale" r + strength (y - r); "sign-flip" r - strength (y - r);
        "gaussian" y + strength times normal noise; "ipm" -strength m (inner-product manipulation);
        "alie" m - strength s (a little is enough); "mimic" the letter of the first honest peer;
        "stale" the first letter for ever. "label-flip": it learns from labels c that became
        C - 1 - c, and sends what it learnt; "label-flip-alone": the same, and it hears nobody.
        "samples": it says that it has strength times as many examples.
    peers : ids of the attackers, like "0,3".
    share : share of the peers that attack, drawn by the seed, where `peers` names none.
    strength : see `kind`; 0 for the usual: 10 for "scale", 1 for "sign-flip" and "gaussian", 0.5
        for "ipm", 1.5 for "alie", 1000 for "samples".
    """

    kind: Kind = "none"
    peers: str = ""
    share: float = 0.0
    strength: float = 0.0

    def __post_init__(self) -> None:
        if self.peers and not all(i.isdecimal() for i in self.peers.split(",")):
            raise ValueError(f'peers wants ids like "0,3", not "{self.peers}"')
        if not 0 <= self.share < 1:
            raise ValueError("share must be at least 0 and below 1")
        if self.strength < 0:
            raise ValueError("strength must not be negative")
        if self.strength and self.kind not in USUAL:
            raise ValueError(f'strength goes with {", ".join(USUAL)}, not with kind "{self.kind}"')
        named = bool(self.peers) + bool(self.share)
        if self.kind == "none" and named:
            raise ValueError('kind = "none", but there are attackers')
        if self.kind != "none" and named != 1:
            raise ValueError("say who attacks: either peers or share")

    def attackers(self, n: int, seed: int) -> npt.NDArray[np.int64]:
        """The ids of the attackers among n peers, ascending; at least one with a `share`.

        Raises
        ------
        ValueError : one of `peers` is no peer, or nobody is left who is honest.
        """
        if self.kind == "none":
            return np.empty(0, dtype=np.int64)
        if self.peers:
            ids = np.unique([int(i) for i in self.peers.split(",")])
        else:
            order = stream(seed, 0, 0, Purpose.ATTACK).permutation(n)
            ids = np.sort(order[: max(1, round(self.share * n))])
        if ids.max() >= n:
            raise ValueError(f'peers = "{self.peers}", but peers are 0 to {n - 1}')
        if len(ids) == n:
            raise ValueError("everybody attacks: somebody must be honest")
        return ids.astype(np.int64)

    @property
    def power(self) -> float:
        """The strength that counts."""
        return self.strength or USUAL.get(self.kind, 0.0)
