"""Costs of the peers of a node: bytes, gradients, and time on the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from coterie.clients.letters import Ints
from coterie.strategies.clock import Clock
from coterie.strategies.schedule import ByClock, Schedule


@dataclass
class Costs:
    """Cumulative costs of each hosted peer, (P,) each."""

    sent: Ints  # payload bytes, also to peers of the same node
    received: Ints  # payload bytes, also from peers of the same node
    n_gradients: Ints  # differentiated examples, moved here from the engine's meter after each step
    unsound: Ints  # non-finite results, which were replaced by the old model
    refused: Ints  # received models and answers that were rejected as implausibly large
    awake: Ints  # rounds in which the peer was awake
    marked: Ints  # (P, 3): examples, bytes sent and received that are already on the virtual clock
    ready: Ints  # round at whose end the peer's work is done, with a schedule by the clock

    @classmethod
    def none(cls, peers: int) -> Costs:
        """Return costs of zero for a number of peers."""
        zeros = {each.name: np.zeros(peers, dtype=np.int64) for each in fields(cls)}
        return cls(**zeros | {"marked": np.zeros((peers, 3), dtype=np.int64)})

    def mark(self, rows: Ints) -> None:
        """Start counting the time of some peers (local indices) from here."""
        self.marked[rows] = self._spent()[rows]

    def seconds(self, clock: Clock | None, peers: Ints, rows: Ints) -> npt.NDArray[np.float64]:
        """Return the seconds of some peers (ids and local indices) since their last mark."""
        assert clock is not None
        return clock.seconds(peers, *(self._spent() - self.marked)[rows].T)

    def pass_time(self, schedule: Schedule, peers: Ints) -> float:
        """Return the seconds of a round on the virtual clock, and restart the count."""
        if schedule.clock is None:
            return 0.0
        everybody = np.arange(len(peers))
        seconds = schedule.elapsed(self.seconds(schedule.clock, peers, everybody))
        if not (isinstance(schedule, ByClock) and schedule.base is None):
            self.mark(everybody)
        return seconds

    def _spent(self) -> Ints:
        return np.stack([self.n_gradients, self.sent, self.received], axis=1)
