"""Ensembles of models whose predictions count, as rules name them and the engine evaluates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coterie.clients.letters import Ints

if TYPE_CHECKING:
    from torch import Tensor


class Mixture(NamedTuple):
    """Ensemble of models per hosted peer, whose predictions are averaged.

    With an `offset`, outputs of any weights and the offset are added instead. Outputs beyond the
    limits are clipped; the limits of the peer's own model are infinite.
    """

    weights: Tensor  # (P, M); rows sum to 1, a member of weight 0 is padding
    models: Tensor  # (P, M, d)
    buffers: dict[str, Tensor]  # (P, M, ...)
    offset: Tensor | None = None  # (P, k)
    low: Tensor | None = None  # limits, (P, M, k) or (P, M, 1)
    high: Tensor | None = None
    authors: Ints | None = None  # peers that trained the members, if there are limits, (P, M)
