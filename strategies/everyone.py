"""Every peer hears all its neighbours in every round: federated averaging and its relatives."""

from __future__ import annotations

from strategies.brokering import Brokering, Marks
from strategies.protocol import Edges


class Everyone(Brokering):
    """Every edge of the topology, in both directions; nobody answers."""

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """All edges of the topology."""
        return self._asking(self.topology, asked=False)
