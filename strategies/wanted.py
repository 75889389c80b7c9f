"""The peers choose: a round has the edges that they wanted in the round before."""

from __future__ import annotations

from typing import ClassVar

from strategies.brokering import Brokering, Marks
from strategies.protocol import Edges


class Wanted(Brokering):
    """The wants inside the topology; nobody answers (DPFL, FedFomo, kNN graphs)."""

    asks: ClassVar[bool] = False
    """Whether every recipient answers."""

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """The wants inside the topology."""
        return self._asking(self._allowed(wants), asked=self.asks)


class WantedAnswers(Wanted):
    """The wants inside the topology, each one answered (WGA, All-for-one, FedeRiCo)."""

    asks: ClassVar[bool] = True
