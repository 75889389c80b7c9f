"""The peers choose: a round has the edges that they wanted in the round before."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from coterie.strategies.brokering import Brokering, Marks
from coterie.strategies.protocol import Edges


class Wanted(Brokering):
    """What recipients want inside the topology; nobody answers (DPFL, FedFomo, kNN graphs)."""

    wanted_by: ClassVar[Literal[0, 1] | None] = 1
    hears_on_waking: ClassVar[bool] = True

    asks: ClassVar[bool] = False
    """Whether every recipient answers."""

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """The wants inside the topology."""
        edges = self._allowed(t, wants, asked=self.asks)
        return edges, np.full(len(edges), self.asks)


class WantedAnswers(Wanted):
    """What recipients want inside the topology, and each one answers (FedeRiCo)."""

    asks: ClassVar[bool] = True
    hears_on_waking: ClassVar[bool] = False


class WantedHelp(WantedAnswers):
    """Senders choose who answers them, inside the topology (WGA, All-for-one)."""

    wanted_by: ClassVar[Literal[0, 1] | None] = 0
