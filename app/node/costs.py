"""What the peers of a node have spent, and how long that took on the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clients.letters import Ints
from strategies.clock import Clock
from strategies.schedule import ByClock, Schedule


@dataclass
class Costs:
    """What each hosted peer has spent so far, (P,) each.

    Attributes
    ----------
    sent, received : payload bytes, wherever the other peer is hosted.
    n_gradients : examples differentiated; the engine counts them.
    unsound : results that were not finite, in whose place the old model stayed.
    refused : models and answers received that were implausibly large.
    spent : (P, A) privacy; the engine counts it.
    awake : rounds in which it was awake.
    marked : (P, 3) examples, bytes sent and received up to which its time is counted.
    ready : the round by whose end its work is done, where a schedule goes by the clock.
    """

    sent: Ints
    received: Ints
    n_gradients: Ints
    unsound: Ints
    refused: Ints
    spent: npt.NDArray[np.float64]
    awake: Ints
    marked: Ints
    ready: Ints

    @classmethod
    def none(cls, n_gradients: Ints, spent: npt.NDArray[np.float64]) -> Costs:
        """Nothing was spent yet."""
        spent[:] = 0
        sent, received, unsound, refused, awake, ready = np.zeros(
            (6, len(n_gradients)), dtype=np.int64
        )
        marked = np.zeros((len(n_gradients), 3), dtype=np.int64)
        return cls(sent, received, n_gradients, unsound, refused, spent, awake, marked, ready)

    def mark(self, rows: Ints) -> None:
        """Count the time of some peers, given by local index, from here on."""
        self.marked[rows] = self._spent()[rows]

    def seconds(self, clock: Clock | None, peers: Ints, rows: Ints) -> npt.NDArray[np.float64]:
        """Seconds that some peers, given by id and local index, took since their last mark."""
        assert clock is not None
        return clock.seconds(peers, *(self._spent() - self.marked)[rows].T)

    def pass_time(self, schedule: Schedule, peers: Ints) -> float:
        """Seconds that a round took on the virtual clock; from here on time is counted anew."""
        if schedule.clock is None:
            return 0.0
        everybody = np.arange(len(peers))
        seconds = schedule.elapsed(self.seconds(schedule.clock, peers, everybody))
        if not (isinstance(schedule, ByClock) and schedule.base is None):
            self.mark(everybody)
        return seconds

    def _spent(self) -> Ints:
        return np.stack([self.n_gradients, self.sent, self.received], axis=1)
