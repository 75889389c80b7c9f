"""Nearest: each peer averages with the peers whose models are closest.

After local training: x_i <- mean of x_i and the k models closest to it (Euclidean distance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coterie import Everyone, Inbox, Rule, Weighted, option

if TYPE_CHECKING:
    from torch import Tensor


class Nearest(
    Rule[Weighted], strategy=Everyone, learns_graph=True,
    summary="averages with the nearest models",
):  # fmt: skip
    """Local training, then an average over the nearest models."""

    neighbours: int = option(
        2, "Number of models of others in a peer's average.", low=1, grid=(1, 2, 4)
    )

    def offer(self, s: Weighted, t: int) -> tuple[Weighted, Mapping[str, Tensor]]:
        """Train locally, then offer the model."""
        s = self.fit(s, t)
        return s, {"x": s.x}

    def update(self, s: Weighted, inbox: Inbox) -> Weighted:
        """Average with the nearest received models."""
        apart_pn = np.where(inbox.heard, inbox.squared_distances("x"), np.inf)
        nearest_pk = apart_pn.argsort(axis=1)[:, : self.neighbours]
        w_pn = self.eye()
        np.put_along_axis(w_pn, nearest_pk, 1.0, axis=1)  # averages leave out absent models
        return replace(s, x=inbox.average("x", w_pn), w=inbox.shares(w_pn))
