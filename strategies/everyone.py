"""Every peer hears all its neighbours in every round: federated averaging and its relatives."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from coterie.strategies.brokering import Brokering, Marks
from coterie.strategies.protocol import Edges


class Everyone(Brokering):
    """Every edge of the topology, in both directions; nobody answers."""

    hears_on_waking: ClassVar[bool] = True

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """All edges of the topology."""
        edges = self._neighbours(t)
        return edges, np.zeros(len(edges), dtype=np.bool_)
