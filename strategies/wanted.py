"""Strategies in which the peers request the edges of the next round."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan, Marks
from coterie.strategies.protocol import Edges


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
