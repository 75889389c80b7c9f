"""A topology, a schedule, an attack and an aggregation rule."""

import numpy as np

from coterie import AggregationRule, AttackKind, Schedule, ScheduleKind, Topology


def star(setting):
    """Link every peer to peer 0."""
    graph = np.zeros((setting.peers, setting.peers), dtype=np.bool_)
    graph[0, 1:] = graph[1:, 0] = True
    return graph


class Alternating(Schedule):
    """Even peers are awake in even rounds, odd peers in odd rounds."""

    def _draw(self, t):
        return np.arange(self.peers) % 2 == t % 2


def heaviest(squares, weights, f):
    """Put all weight on the letter with the most examples, whatever the distances are."""
    return np.eye(len(weights))[weights.argmax()]


STAR = Topology("every peer is linked to peer 0", star)
ALTERNATING = ScheduleKind(
    "even and odd peers in turn", lambda options, setting: Alternating(*setting)
)
ZERO = AttackKind("zeros instead of a model", lambda known: 0 * known.own)
HEAVIEST = AggregationRule("the letter with the most examples", heaviest)
