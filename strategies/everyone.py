"""Strategies of averaging: every peer receives the models of all its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False, kw_only=True)
class EveryoneAfterWarmup(Everyone):
    """All edges of the topology after the first rounds, which have none (trust)."""

    warmup: int = 0
    """Number of rounds without edges."""

    @property
    def _is_everyone(self) -> bool:
        return not self.warmup

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        edges, asked = super().edges(t, wants)
        end = len(edges) if t > self.warmup else 0
        return edges[:end], asked[:end]
