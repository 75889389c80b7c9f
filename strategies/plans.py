"""Exchange plans: no edges, all edges, and edges that the peers request."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan, Marks
from coterie.strategies.protocol import Edges, no_edges


class Silent(ExchangePlan):
    """No edges in any round: every peer trains alone."""

    exchanges: ClassVar[bool] = False

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        return no_edges(), np.empty(0, dtype=np.bool_)


class Everyone(ExchangePlan):
    """All edges of the topology, without answers."""

    is_everyone: ClassVar[bool] = True
    receives_on_waking: ClassVar[bool] = True

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        edges = self._neighbours(t)
        return edges, np.zeros(len(edges), dtype=np.bool_)


class Wanted(ExchangePlan):
    """Edges requested by recipients, without answers (DPFL, FedFomo)."""

    wanted_by: ClassVar[Literal[0, 1] | None] = 1
    receives_on_waking: ClassVar[bool] = True

    asks: ClassVar[bool] = False
    """Every recipient answers."""

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        edges = self._allowed(t, wants, asked=self.asks)
        return edges, np.full(len(edges), self.asks)


class WantedAnswers(Wanted):
    """Edges requested by recipients, with answers (FedeRiCo)."""

    asks: ClassVar[bool] = True
    receives_on_waking: ClassVar[bool] = False


class WantedHelp(WantedAnswers):
    """Edges requested by senders, with answers (WGA, All-for-one)."""

    wanted_by: ClassVar[Literal[0, 1] | None] = 0
