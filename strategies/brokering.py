"""Brokering strategies: which peers exchange models in which round, and the loop over rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.strategies.changing import Links
from coterie.strategies.protocol import METRICS, Edges
from coterie.strategies.schedule import Schedule
from coterie.strategies.topology import Matrix

Marks = npt.NDArray[np.bool_]
"""(E,) one mark for each edge."""


@dataclass(frozen=True)
class Round:
    """The exchanges of one round.

    Attributes
    ----------
    t : the round, from 1.
    edges : (E, 2) without repeats, sorted by (recipient, sender), all inside the topology.
    asked : (E,) whether the recipient answers the sender.
    evaluated : whether the peers measure themselves when the round ends.
    ages : sender -> how many rounds old its letter is, where a node knows better than the schedule.
    """

    t: int
    edges: Edges
    asked: Marks
    evaluated: bool
    ages: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Brokering(ABC):
    """Base class of the brokering strategies; knows no transport, no model and no Flower.

    A subclass says only `edges`, a pure function of its arguments and its fields: the relay and a
    node that hosts every peer both call it, and get the same rounds.

    Attributes
    ----------
    peers : number of peers n.
    rounds : rounds of the whole run.
    seed : of sampled edges.
    topology : (n, n) bool, who may talk to whom at all; symmetric, empty diagonal.
    evaluate_every : rounds between two evaluations; the last round is always evaluated.
    metrics : names of what peers may report; the method's own ones beside those that all have.
    schedule : who is awake in which round.
    links : of a topology that changes, the edges of each round; they lie inside `topology`.
    """

    peers: int
    rounds: int
    seed: int
    topology: Matrix
    evaluate_every: int = 1
    metrics: frozenset[str] = METRICS
    schedule: Schedule = field(default=None)  # type: ignore[assignment]  # then: see below
    links: Links | None = None

    exchanges: ClassVar[bool] = True
    """Whether models ever travel; if not, nodes need not write offers."""
    wanted_by: ClassVar[Literal[0, 1] | None] = None
    """Column of an edge with the peer that may want it: sender, recipient, or nobody."""
    hears_on_waking: ClassVar[bool] = False
    """Whether a peer that wakes hears the offers of the round before, see `Schedule`."""

    def __post_init__(self) -> None:
        assert self.topology.shape == (self.peers, self.peers)
        schedule = self.schedule or Schedule(self.peers, self.rounds)  # everybody, always
        object.__setattr__(self, "schedule", schedule)

    @abstractmethod
    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """Name the edges of round `t`.

        Parameters
        ----------
        t : the round, from 1.
        wants : (W, 2) edges that the peers want in this round, in any order.

        Returns
        -------
        edges, asked : see `Round`.
        """

    def each_round(self, first: int, last: int, wants: Callable[[int], Edges]) -> Iterator[Round]:
        """Yield rounds `first` to `last`: the one loop over rounds, wherever they are played.

        The relay plays a round by exchanging messages with the nodes, a node that hosts every peer
        by calling its cohort::

            for this in strategy.each_round(first, last, lambda t: rule.wants(cohort.state, t)):
                ...  # receive, answer and update; evaluate if this.evaluated; begin the next

        Parameters
        ----------
        wants : the edges that the peers want in a round; called when that round begins.
        """
        for t in range(first, last + 1):
            edges, asked = self.edges(t, wants(t))
            yield Round(t, edges, asked, self.is_evaluated(t))

    def is_evaluated(self, t: int) -> bool:
        """Whether the peers measure themselves after round `t`."""
        return t % self.evaluate_every == 0 or t == self.rounds

    def next_evaluated(self, t: int) -> int:
        """The first evaluated round from `t` on."""
        return min(t + -t % self.evaluate_every, self.rounds)

    def cautions(self) -> tuple[str, ...]:
        """Warnings about a run that can be started but is unlikely to do what it is meant for."""
        return ()

    def _ends(self, t: int, *, asked: bool) -> tuple[Marks, Marks]:
        """(n,) whose model can be heard in round `t`, and who hears.

        Parameters
        ----------
        asked : by edges that are answered: both ends are awake.
        """
        if asked:
            return self.schedule.awake(t), self.schedule.awake(t)
        return self.schedule.offered(t) > 0, self.schedule.ending(t)

    def _graph(self, t: int) -> Matrix:
        """(n, n) who may talk to whom in round `t`, [sender, recipient]."""
        return self.topology if self.links is None else self.links(t)

    def _neighbours(self, t: int) -> Edges:
        """All edges of the topology along which a model can be heard in round `t`."""
        senders, recipients = map(np.flatnonzero, self._ends(t, asked=False))
        pairs = np.argwhere(self._graph(t)[np.ix_(senders, recipients)].T)
        return np.stack([senders[pairs[:, 1]], recipients[pairs[:, 0]]], axis=1)

    def _allowed(self, t: int, wants: Edges, *, asked: bool) -> Edges:
        """The wants that topology and schedule allow in round `t`."""
        senders, recipients = wants.T
        can_send, can_hear = self._ends(t, asked=asked)
        there = self._graph(t)[senders, recipients] & can_send[senders] & can_hear[recipients]
        return self._sorted(wants[there])

    def _sorted(self, edges: Edges) -> Edges:
        """The edges by (recipient, sender), each once."""
        recipients, senders = np.divmod(np.unique(self._number(edges)), self.peers)
        return np.stack([senders, recipients], axis=1)

    def _number(self, edges: Edges) -> npt.NDArray[np.int64]:
        """A number for each edge, in the order of edges."""
        numbers: npt.NDArray[np.int64] = edges[:, 1] * self.peers + edges[:, 0]
        return numbers
