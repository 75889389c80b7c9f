"""Everybody hears all their neighbours in every round: federated averaging and its relatives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.flower.strategy import RelayStrategy
from strategies.protocol import Edges


class Everyone(RelayStrategy):
    """Every edge of the topology, in both directions; nobody answers."""

    def edges(self, t: int, wants: Edges) -> tuple[Edges, npt.NDArray[np.bool_]]:
        """All edges of the topology."""
        return self._asking(self.topology, asked=False)
