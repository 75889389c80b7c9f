"""Maximum sizes in a configuration; larger values are a mistake or an attack.

They are checked before anything is allocated. An institution's policy has smaller limits
(`coterie.app.security.policy`).
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.app.config.schema import Scalar
from coterie.clients.models.options import MAX_LAYERS

MAX_PEERS = 20_000
"""Maximum number of peers: a topology takes one byte per pair of peers."""
MAX_TEXT = 100_000
"""Maximum characters of a value."""
MAX_WHOLE = 2**53
"""Maximum of an integer without a specific limit; `seed` has no limit."""
MAX_EXAMPLE = 100_000_000
"""Maximum number of values of an image or a volume."""
MAX_NUMBERS = 250_000_000
"""Maximum number of values of a synthetic data set over all peers, 2 GB."""

_MOST: Mapping[str, float] = {
    "peers": MAX_PEERS,
    "rounds": 10**7,
    "every": 10**7,
    "steps": 10**6,
    "epochs": 10**5,
    "seconds": 10**7,
    "batch-size": 10**6,
    "age": 10**4,
    "iterations": 10**4,
    "layers": MAX_LAYERS,
    "width": 2**16,
    "heads": 2**10,
    "rank": 2**12,
    "components": 1000,
    "clusters": MAX_PEERS,
    "models": MAX_PEERS,
    "neighbours": 10**6,
    "helpers": MAX_PEERS,
    "degree": MAX_PEERS,
    "ensemble": 10**6,
    "context": 2**16,
    "tokens": 10**11,
    "dimension": 10**6,
    "trials": 10**7,
    "samples": 10**9,
}
"""Last word or words of a key -> maximum value; also for options of plugins."""


def check(key: str, value: Scalar) -> None:
    """Refuse a value beyond its limit.

    Parameters
    ----------
    key : str
        Dotted key.

    Raises
    ------
    ValueError
        The message has the limit.
    """
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ValueError(f"must have at most {MAX_TEXT} characters, not {len(value)}")
        return
    name = key.rpartition(".")[2]
    most = _MOST.get(name, _MOST.get(name.rpartition("-")[2]))
    if most is None and isinstance(value, int) and name != "seed":
        most = MAX_WHOLE
    if most is not None and value > most:
        raise ValueError(f"must be at most {most}")
