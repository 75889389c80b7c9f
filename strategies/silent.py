"""Strategy without communication: every peer trains alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan, Marks
from coterie.strategies.protocol import Edges, no_edges


class Silent(ExchangePlan):
    """No edges in any round."""

    exchanges: ClassVar[bool] = False

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        return no_edges(), np.empty(0, dtype=np.bool_)
