"""A topology, a schedule, an attack and an aggregation rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie import AggregationRule, AttackKind, Schedule, ScheduleKind, Topology
from coterie.strategies.topology import Setting

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def star(setting: Setting) -> Bools:
    """Link every peer to peer 0."""
    graph = np.zeros((setting.peers, setting.peers), dtype=np.bool_)
    graph[0, 1:] = graph[1:, 0] = True
    return graph


class Alternating(Schedule):
    """Even peers are awake in even rounds, odd peers in odd rounds."""

    def _draw(self, t: int) -> Bools:
        return np.asarray(np.arange(self.peers) % 2 == t % 2)


def heaviest(squares: Floats, weights: Floats, f: int) -> Floats:
    """Put all weight on the letter with the most examples, whatever the distances are."""
    row: Floats = np.eye(len(weights))[weights.argmax()]
    return row


STAR = Topology("every peer is linked to peer 0", star)
ALTERNATING = ScheduleKind(
    "even and odd peers in turn", lambda options, setting: Alternating(*setting)
)
ZERO = AttackKind("zeros instead of a model", lambda known: 0 * known.own)
HEAVIEST = AggregationRule("the letter with the most examples", heaviest)
