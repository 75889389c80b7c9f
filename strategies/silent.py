"""Nobody talks: every peer learns alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from strategies.flower.strategy import RelayStrategy
from strategies.protocol import Edges, no_edges


class Silent(RelayStrategy):
    """No edges in any round."""

    exchanges: ClassVar[bool] = False

    def edges(self, t: int, wants: Edges) -> tuple[Edges, npt.NDArray[np.bool_]]:
        """No edges."""
        return no_edges(), np.empty(0, dtype=np.bool_)
