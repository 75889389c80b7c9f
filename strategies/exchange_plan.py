"""Exchange plans: which peers exchange models in which round, and the loop over rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.strategies.protocol import METRICS, Edges
from coterie.strategies.push_sum import Matrix
from coterie.strategies.schedule import Schedule
from coterie.strategies.topology import Links

Marks = npt.NDArray[np.bool_]
"""Mask over edges, (E,)."""


@dataclass(frozen=True)
class Round:
    """Exchanges of one round."""

    t: int  # number of the round, from 1
    edges: Edges  # edges inside the topology, (E, 2), unique, sorted by (recipient, sender)
    asked: Marks  # mask (E,) of the edges whose recipient answers the sender
    evaluated: bool  # the peers evaluate their models at the end of the round
    ages: Mapping[int, int] = field(default_factory=dict)
    """Age of each sender's letter in rounds, where a node knows it better than the schedule."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ExchangePlan(ABC):
    """Base class of strategies; independent of transports, models and Flower.

    A subclass implements `edges`, a pure function of its arguments and its fields: the relay and a
    node that hosts every peer both call it, and get the same rounds.
    """

    peers: int
    """Number of peers n."""
    rounds: int
    """Number of rounds of the run."""
    seed: int
    """Seed of sampled edges."""
    topology: Matrix
    """Edges (n, n) that are allowed in some round; symmetric, with an empty diagonal."""
    evaluate_every: int = 1
    """Rounds between two evaluations; the last round is always evaluated."""
    evaluates_all: bool = False
    """In a simulation, sleeping peers are evaluated, too."""
    metrics: frozenset[str] = METRICS
    """Names of the metrics that peers may report."""
    schedule: Schedule = field(default=None)  # type: ignore[assignment]  # set in __post_init__
    """Peers that are awake in each round; default: all."""
    links: Links | None = None
    """Edges of each round, for a topology that changes; they lie inside `topology`."""

    exchanges: ClassVar[bool] = True
    """Models are sent; if not, nodes do not write offers."""
    wanted_by: ClassVar[Literal[0, 1] | None] = None
    """Column of the edge end that may request it (0: sender, 1: recipient); None: no requests."""
    is_everyone: ClassVar[bool] = False
    """`edges` returns all possible edges."""
    receives_on_waking: ClassVar[bool] = False
    """A peer that wakes receives the offers of the previous round, see `Schedule`."""

    def __post_init__(self) -> None:
        assert self.topology.shape == (self.peers, self.peers)
        schedule = self.schedule or Schedule(self.peers, self.rounds)
        object.__setattr__(self, "schedule", schedule)

    @abstractmethod
    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """Return the edges (E, 2) of round `t`, from 1, and a mask (E,) of those answered.

        `wants` (W, 2) are the edges that the peers request for this round, in any order.
        """

    def each_round(self, first: int, last: int, wants: Callable[[int], Edges]) -> Iterator[Round]:
        """Iterate over rounds `first` to `last`.

        Both the relay, which exchanges messages with the nodes, and a node that hosts every peer
        run this loop::

            for this in strategy.each_round(first, last, lambda t: rule.wants(cohort.state, t)):
                ...  # receive, answer and update; evaluate if this.evaluated; begin the next

        `wants`, from a round to the edges that the peers request, is called when it begins.
        """
        for t in range(first, last + 1):
            edges, asked = self.edges(t, wants(t))
            yield Round(t, edges, asked, self.is_evaluated(t))

    @property
    def is_constant(self) -> bool:
        """True if every edge of the topology carries a model in every round."""
        return self.schedule.is_always and self.links is None and self.is_everyone

    def is_evaluated(self, t: int) -> bool:
        """Return True if the peers evaluate their models after round `t`."""
        return t % self.evaluate_every == 0 or t == self.rounds

    def next_evaluated(self, t: int) -> int:
        """Return the first evaluated round from `t` on."""
        return min(t + -t % self.evaluate_every, self.rounds)

    def cautions(self) -> tuple[str, ...]:
        """Return warnings about a valid configuration that is unlikely to work well."""
        return ()

    def _ends(self, t: int, *, asked: bool) -> tuple[Marks, Marks]:
        """Return masks (n,) of the possible senders and recipients of round `t`."""
        # Both ends of edges that are answered (`asked`) must be awake.
        if asked:
            return self.schedule.awake(t), self.schedule.awake(t)
        return self.schedule.offered(t) > 0, self.schedule.ending(t)

    def _graph(self, t: int) -> Matrix:
        """Return the allowed edges (n, n) of round `t`, [sender, recipient]."""
        return self.topology if self.links is None else self.links(t)

    def _neighbours(self, t: int) -> Edges:
        """Return all edges that can carry a model in round `t`."""
        senders, recipients = map(np.flatnonzero, self._ends(t, asked=False))
        pairs = np.argwhere(self._graph(t)[np.ix_(senders, recipients)].T)
        return np.stack([senders[pairs[:, 1]], recipients[pairs[:, 0]]], axis=1)

    def _allowed(self, t: int, wants: Edges, *, asked: bool) -> Edges:
        """Return the requested edges that topology and schedule allow in round `t`."""
        senders, recipients = wants.T
        can_send, can_receive = self._ends(t, asked=asked)
        allowed = self._graph(t)[senders, recipients] & can_send[senders] & can_receive[recipients]
        return self._sorted(wants[allowed])

    def _sorted(self, edges: Edges) -> Edges:
        """Sort edges by (recipient, sender) and drop duplicates."""
        recipients, senders = np.divmod(np.unique(self._number(edges)), self.peers)
        return np.stack([senders, recipients], axis=1)

    def _number(self, edges: Edges) -> npt.NDArray[np.int64]:
        """Return a unique number per edge that sorts by (recipient, sender)."""
        numbers: npt.NDArray[np.int64] = edges[:, 1] * self.peers + edges[:, 0]
        return numbers
