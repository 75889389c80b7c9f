"""Place of a node: in a simulation, or at an institution. It is decided once, by the process."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.app.security.policy import Policy
from coterie.app.security.sealing import Sealing


@dataclass(frozen=True)
class Simulated:
    """A node that hosts some peers of a simulation.

    Attributes
    ----------
    gpu : int
        Index of the GPU, modulo the number of visible GPUs.
    sealing : Sealing or None
        Encryption of letters; None: set by the run's configuration.
    """

    gpu: int = 0
    sealing: Sealing | None = None


@dataclass(frozen=True)
class Deployed:
    """A node at an institution; it hosts one peer, whose data lie in `data-dir`.

    Attributes
    ----------
    sealing : Sealing or None
        Encryption of letters; None: plain letters.
    policy : Policy or None
        Policy of the institution; None: no limits.
    """

    sealing: Sealing | None = None
    policy: Policy | None = None


Place = Simulated | Deployed

ALONE = Simulated()
"""The only node of a simulation, or a node whose number has no effect."""
