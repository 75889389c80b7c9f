"""Virtual clock: the time that a round would take on realistic machines and links.

Nothing here waits: a peer's seconds follow from the run's counters,

    examples differentiated / speed + bytes sent / up + bytes received / down + latency,

with the latency once for each direction that carried letters. The slowest peer ends a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.ranges import option
from coterie.strategies.columns import fault_in, read_columns
from coterie.strategies.errors import ScheduleError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_PURPOSE = 0xC10C
_COLUMNS = (
    "examples-per-second",
    "up-bytes-per-second",
    "down-bytes-per-second",
    "latency-seconds",
)
_MBIT = 1e6 / 8


PROFILES: dict[str, tuple[tuple[float, float], ...]] = {
    "hospitals": ((2000.0, 2.0), (100 * _MBIT, 2.0), (200 * _MBIT, 2.0), (0.02, 1.5)),
    "phones": ((50.0, 3.0), (8 * _MBIT, 2.5), (40 * _MBIT, 2.5), (0.05, 1.6)),
}
"""Medians of log-normal examples per second, bytes per second and latency in seconds, and ratios
of the 84 % quantile to them; orders of magnitude, see docs/schedules.md."""


@dataclass(frozen=True)
class Options:
    """Options of the virtual clock."""

    profile: Literal["none", "hospitals", "phones", "file"] = option(
        "none", 'Distribution of machines and links; "none" for no clock.'
    )
    file: str = option(
        "",
        'path CSV for "file", with the columns peer, examples-per-second, up-bytes-per-second, '
        "down-bytes-per-second and latency-seconds, and a line per peer.",
        path=True,
    )
    tick: float = option(1.0, 'Seconds per round of a schedule of kind "clock".', above=0)
    deadline: float = option(
        0.0,
        "Seconds after which a round ends without the peers that are not ready; 0 for no limit.",
        low=0,
    )

    def __post_init__(self) -> None:
        if self.deadline and self.profile == "none":
            raise ValueError("a deadline needs a profile")
        if self.profile == "file" and not self.file:
            raise ValueError('profile = "file" needs a file')


@dataclass(frozen=True, eq=False)
class Clock:
    """Speed of each peer and its link."""

    speed: Floats  # examples differentiated per second, (n,)
    up: Floats
    down: Floats  # bytes per second, (n,)
    latency: Floats  # seconds, (n,)
    tick: float = 1.0  # seconds per round of a schedule of kind "clock"

    def seconds(self, peers: Ints, examples: Ints, sent: Ints, received: Ints) -> Floats:
        """Return the seconds that peers take for numbers of examples and bytes, (P,) each."""
        latency = self.latency[peers] * ((sent > 0).astype(np.int64) + (received > 0))
        seconds: Floats = examples / self.speed[peers] + latency
        return seconds + sent / self.up[peers] + received / self.down[peers]


def clock(options: Options, peers: int, seed: int) -> Clock | None:
    """Make the clock, None for `profile` = "none"; ScheduleError: its file is missing or wrong."""
    if options.profile == "none":
        return None
    if options.profile == "file":
        speed, up, down, latency = _read(Path(options.file), peers)
        return Clock(speed, up, down, latency, options.tick)
    g = np.random.default_rng((seed, _PURPOSE))
    speed, up, down, latency = (
        median * ratio ** g.standard_normal(peers) for median, ratio in PROFILES[options.profile]
    )
    return Clock(speed, up, down, latency, options.tick)


def _read(path: Path, peers: int) -> Floats:
    """Read the columns of a file, (4, n)."""
    invalid = fault_in(path, "clock", ScheduleError)
    lines = read_columns(path, ("peer", *_COLUMNS), float, invalid)
    by_peer = {peer: speeds for _, (peer, *speeds) in lines}
    if sorted(by_peer) != list(range(peers)):
        raise invalid(f"needs a line for each peer, 0 to {peers - 1}")
    table = np.array([by_peer[peer] for peer in range(peers)]).T
    if not (np.isfinite(table).all() and (table[:3] > 0).all() and (table[3] >= 0).all()):
        raise invalid("speeds must be above 0, latencies must not be negative")
    return table
