"""Options of simulated attacks, table [attack], which `coterie.app.node.cohort.attackers` has."""

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
"""Default strength by kind; the other kinds have no strength."""


@dataclass(frozen=True)
class Attack:
    """Attacks by some of the peers, for simulations.

    An attacker computes an honest letter y (a model or an answer) and sends a malicious one
    instead. It knows y and a set of letters with mean m and standard deviation s per coordinate:
    for a model, the honest models that it received in the last round; for an answer, its own
    answers to all peers. The reference r is m for models and 0 for answers. An attacker that has
    not received a model yet sends y where m is needed.

    Attributes
    ----------
    kind : str
        The letter sent: "nan"; "scale" r + strength (y - r); "sign-flip" r - strength (y - r);
        "gaussian" y + strength times normal noise; "ipm" -strength m (inner-product manipulation);
        "alie" m - strength s (a little is enough); "mimic" the letter of the first honest peer;
        "stale" the attacker's first letter, repeated. "label-flip": y, trained on labels
        C - 1 - c instead of c; "label-flip-alone": the same, ignoring all received letters.
        "samples": y, with a claim of strength times as many examples.
    peers : str
        Ids of the attackers, like "0,3".
    share : float
        Share of the peers that attack, drawn from the seed; instead of `peers`.
    strength : float
        See `kind`; 0 for the default: 10 for "scale", 1 for "sign-flip" and "gaussian", 0.5 for
        "ipm", 1.5 for "alie", 1000 for "samples".
    """

    kind: Kind = "none"
    peers: str = ""
    share: float = 0.0
    strength: float = 0.0

    def __post_init__(self) -> None:
        if self.peers and not all(i.isdecimal() for i in self.peers.split(",")):
            raise ValueError(f'peers must be ids like "0,3", not "{self.peers}"')
        if not 0 <= self.share < 1:
            raise ValueError("share must be at least 0 and below 1")
        if self.strength < 0:
            raise ValueError("strength must not be negative")
        if self.strength and self.kind not in USUAL:
            raise ValueError(f'strength applies to {", ".join(USUAL)}, not to kind "{self.kind}"')
        selections = bool(self.peers) + bool(self.share)
        if self.kind == "none" and selections:
            raise ValueError('kind = "none", but peers or share selects attackers: set kind')
        if self.kind != "none" and selections != 1:
            raise ValueError("select the attackers: set either peers or share")

    def attackers(self, n: int, seed: int) -> npt.NDArray[np.int64]:
        """Return the ids of the attackers among n peers, ascending; at least one with a `share`.

        Raises
        ------
        ValueError
            An id of `peers` is out of range, or no peer is honest.
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
            raise ValueError("all peers attack: leave at least one honest")
        return ids.astype(np.int64)

    @property
    def power(self) -> float:
        """Strength, or its default for this kind."""
        return self.strength or USUAL.get(self.kind, 0.0)
