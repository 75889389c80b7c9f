"""Costs of the peers of a node: bytes, gradients, and time on the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.clients.letters import Ints
from coterie.strategies.clock import Clock
from coterie.strategies.schedule import ByClock, Schedule


@dataclass
class Costs:
    """Cumulative costs of each hosted peer, (P,) each.

    Attributes
    ----------
    sent : ndarray of int
        Payload bytes sent, also to peers of the same node.
    received : ndarray of int
        Payload bytes received, also from peers of the same node.
    n_gradients : ndarray of int
        Number of differentiated examples, moved here from the engine's meter after each step.
    unsound : ndarray of int
        Number of non-finite results, which were replaced by the old model.
    refused : ndarray of int
        Number of received models and answers that were rejected as implausibly large.
    awake : ndarray of int
        Number of rounds in which the peer was awake.
    marked : ndarray of int, (P, 3)
        Examples, bytes sent and bytes received that are already on the virtual clock.
    ready : ndarray of int
        Round at whose end the peer's work is done, with a schedule by the clock.
    """

    sent: Ints
    received: Ints
    n_gradients: Ints
    unsound: Ints
    refused: Ints
    awake: Ints
    marked: Ints
    ready: Ints

    @classmethod
    def none(cls, peers: int) -> Costs:
        """Return costs of zero for a number of peers."""
        sent, received, n_gradients, unsound, refused, awake, ready = np.zeros(
            (7, peers), dtype=np.int64
        )
        marked = np.zeros((peers, 3), dtype=np.int64)
        return cls(sent, received, n_gradients, unsound, refused, awake, marked, ready)

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
