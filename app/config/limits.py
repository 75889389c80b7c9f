"""Maximum sizes in a configuration, checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.clients.models.options import MAX_LAYERS
from coterie.ranges import Scalar

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
    **dict.fromkeys(("peers", "clusters", "models", "helpers", "degree"), MAX_PEERS),
    **dict.fromkeys(("rounds", "every", "seconds", "trials"), 10**7),
    **dict.fromkeys(("steps", "batch-size", "neighbours", "ensemble", "dimension"), 10**6),
    **dict.fromkeys(("age", "iterations"), 10**4),
    **dict.fromkeys(("width", "context"), 2**16),
    "epochs": 10**5, "layers": MAX_LAYERS, "heads": 2**10, "rank": 2**12, "components": 1000,
    "tokens": 10**11, "samples": 10**9,
}  # fmt: skip
"""Last word or words of a key -> maximum value; so it also holds for options of plugins."""


def check(key: str, value: Scalar) -> None:
    """Refuse a value of a dotted key beyond its limit, with a ValueError that has the limit."""
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
