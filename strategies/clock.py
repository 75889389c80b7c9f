"""The virtual clock: how long a round would take on machines and links of the world.

Nothing here waits. A peer's seconds follow from what the run counts anyway, so they are the same
wherever it is hosted and however fast this machine is:

    examples differentiated / speed + bytes sent / up + bytes received / down + latency,

the latency once for each direction in which it had letters. Peers work side by side: a round takes
as long as its slowest peer.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Spread:
    """A log-normal distribution: its median, and the ratio of its 84 % quantile to the median."""

    median: float
    ratio: float

    def draw(self, g: np.random.Generator, n: int) -> Floats:
        """Draw (n,) values."""
        values: Floats = self.median * self.ratio ** g.standard_normal(n)
        return values


PROFILES: dict[str, tuple[Spread, Spread, Spread, Spread]] = {
    "hospitals": (
        Spread(2000.0, 2.0), Spread(100 * _MBIT, 2.0), Spread(200 * _MBIT, 2.0), Spread(0.02, 1.5),
    ),
    "phones": (
        Spread(50.0, 3.0), Spread(8 * _MBIT, 2.5), Spread(40 * _MBIT, 2.5), Spread(0.05, 1.6),
    ),
}  # fmt: skip
"""Examples a second, bytes a second up and down, and seconds of latency: orders of magnitude, see
docs/schedules.md."""


@dataclass(frozen=True)
class Options:
    """The options of the virtual clock.

    Attributes
    ----------
    profile : the world whose machines and links the peers have; "none" keeps no time.
    file : CSV of "file" with the columns peer, examples-per-second, up-bytes-per-second,
        down-bytes-per-second and latency-seconds, a line for each peer.
    tick : seconds of a round in a schedule of the kind "clock".
    deadline : seconds after which a round ends without those who are not ready; 0: it waits.
    """

    profile: Literal["none", "hospitals", "phones", "file"] = "none"
    file: Annotated[str, Path] = ""
    tick: float = 1.0
    deadline: float = 0.0

    def __post_init__(self) -> None:
        if self.tick <= 0 or self.deadline < 0:
            raise ValueError("tick must be above 0 and deadline not below it")
        if self.deadline and self.profile == "none":
            raise ValueError("a deadline needs a profile")
        if self.profile == "file" and not self.file:
            raise ValueError('profile = "file" needs a file')


@dataclass(frozen=True, eq=False)
class Clock:
    """How fast each peer is, (n,) each.

    Attributes
    ----------
    speed : examples differentiated a second.
    up, down : bytes a second.
    latency : seconds.
    """

    speed: Floats
    up: Floats
    down: Floats
    latency: Floats

    def seconds(self, peers: Ints, examples: Ints, sent: Ints, received: Ints) -> Floats:
        """Seconds that some peers take for so many examples and bytes each."""
        latency = self.latency[peers] * ((sent > 0).astype(np.int64) + (received > 0))
        found: Floats = examples / self.speed[peers] + latency
        return found + sent / self.up[peers] + received / self.down[peers]


def clock(options: Options, peers: int, seed: int) -> Clock | None:
    """Make the clock of a configuration; None where it keeps no time.

    Raises
    ------
    ScheduleError
        The file is missing or wrong.
    """
    if options.profile == "none":
        return None
    if options.profile == "file":
        return Clock(*_read(Path(options.file), peers))
    g = np.random.default_rng((seed, _PURPOSE))
    return Clock(*(spread.draw(g, peers) for spread in PROFILES[options.profile]))


def _read(path: Path, peers: int) -> Floats:
    """(4, n) the columns of a file."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        found = {int(row["peer"]): [float(row[name]) for name in _COLUMNS] for row in rows}
    except OSError as error:
        raise ScheduleError(f"clock file {path}: {error.strerror or 'cannot be read'}") from None
    except (KeyError, TypeError, ValueError):
        raise ScheduleError(
            f"clock file {path}: wants numbers under peer, {', '.join(_COLUMNS)}"
        ) from None
    if sorted(found) != list(range(peers)):
        raise ScheduleError(f"clock file {path}: wants a line for each peer, 0 to {peers - 1}")
    table = np.array([found[peer] for peer in range(peers)]).T
    if not (np.isfinite(table).all() and (table[:3] > 0).all() and (table[3] >= 0).all()):
        raise ScheduleError(f"clock file {path}: speeds must be above 0 and latencies not below it")
    return table
