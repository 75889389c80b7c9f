"""Strategies of averaging: every peer receives the models of all its neighbours."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan, Marks
from coterie.strategies.protocol import Edges


class Everyone(ExchangePlan):
    """All edges of the topology, without answers."""

    receives_on_waking: ClassVar[bool] = True

    @property
    def _is_everyone(self) -> bool:
        return True

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        edges = self._neighbours(t)
        return edges, np.zeros(len(edges), dtype=np.bool_)
