"""Random graph: DPFL with random instead of greedily chosen neighbours, as a control.

Each peer draws as many others as DPFL's budget allows, among the senders of round 1, and averages
with all of them from then on ("Decentralized Personalized Federated Learning", 4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Bools, Letters
from coterie.clients.methods.dpfl import DPFL, Budget, DPFLState
from coterie.clients.parts.greedy import Choice


@dataclass(frozen=True)
class Options(Budget):
    """Options of the random graph: those of DPFL without its choice of peers."""

    period: ClassVar[int] = 1
    refresh: ClassVar[str] = "reuse"


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
