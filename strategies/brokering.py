"""Brokering strategies: which peers exchange models in which round, and the loop over rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from strategies.protocol import METRICS, Edges
from strategies.topology import Matrix, listed, matrix_of

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
    """

    t: int
    edges: Edges
    asked: Marks
    evaluated: bool


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
    """

    peers: int
    rounds: int
    seed: int
    topology: Matrix
    evaluate_every: int = 1
    metrics: frozenset[str] = METRICS

    exchanges: ClassVar[bool] = True
    """Whether models ever travel; if not, nodes need not write offers."""
    wanted_by: ClassVar[Literal[0, 1] | None] = None
    """Column of an edge with the peer that may want it: sender, recipient, or nobody."""

    def __post_init__(self) -> None:
        assert self.topology.shape == (self.peers, self.peers)

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

    def _allowed(self, wants: Edges) -> Matrix:
        """The wants that the topology allows, as a matrix [sender, recipient]."""
        return matrix_of(wants, self.peers) & self.topology

    def _asking(self, matrix: Matrix, asked: Matrix | bool) -> tuple[Edges, Marks]:
        """The edges of `matrix` and which of them are marked in `asked`."""
        edges = listed(matrix)
        return edges, np.broadcast_to(asked, matrix.shape)[edges[:, 0], edges[:, 1]].copy()
