"""Place of a node: in a simulation, or at an institution. It is decided once, by the process."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.app.institution.security.policy import Policy
from coterie.app.institution.security.sealing import Sealing


@dataclass(frozen=True)
class Simulated:
    """A node that hosts some peers of a simulation."""

    gpu: int = 0  # modulo the number of visible GPUs
    sealing: Sealing | None = None  # None: set by the run's configuration


@dataclass(frozen=True)
class Deployed:
    """A node at an institution; it hosts one peer, whose data lie in `data-dir`."""

    sealing: Sealing | None = None  # None: plain letters
    policy: Policy | None = None  # of the institution; None: no limits


Place = Simulated | Deployed

ALONE = Simulated()
"""The only node of a simulation, or a node whose number has no effect."""
