"""Random graph: DPFL with random instead of greedily chosen neighbours, as a control.

Each peer draws as many others as DPFL's budget allows, among the senders of round 1, and averages
with all of them from then on ("Decentralized Personalized Federated Learning", 4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Letters
from coterie.clients.methods.dpfl import DPFL, DPFLState
from coterie.clients.parts.greedy import Choice
from coterie.clients.rule import Grid
from coterie.ranges import Range


@dataclass(frozen=True)
class Options:
    """Options of the random graph, as in DPFL.

    Attributes
    ----------
    budget : int
        Maximum number of peers in an average; 0 for no limit.
    budget_counts_self : bool
        The budget includes the peer itself.
    init_epochs : int
        Local epochs before the first average.
    """

    budget: Annotated[int, Range(0)] = 0
    budget_counts_self: bool = True
    init_epochs: Annotated[int, Range(1)] = 10
    period: ClassVar[int] = 1
    refresh: ClassVar[str] = "reuse"
    grid: ClassVar[Grid] = {"init-epochs": (2, 5, 10)}


class RandomGraph(DPFL):
    """DPFL whose neighbours are drawn once at random."""

    def choose(
        self, state: DPFLState, round_: int, offers: Letters, candidates_pn: Bools
    ) -> Choice:
        chosen_pn = self.eye() > 0
        for p, peer in enumerate(self.engine.peers):
            g = stream(self.engine.seed, int(peer), round_, Purpose.CHOICE)
            shuffled = g.permutation(np.flatnonzero(candidates_pn[p]))
            chosen_pn[p, shuffled[: self.max_peers - 1]] = True
        return Choice(chosen_pn, np.zeros(len(chosen_pn), dtype=np.int64))
