"""The [engine] table: how models are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.ranges import option

Backend = Literal["auto", "sequential", "batched", "vmapped"]


@dataclass(frozen=True)
class EngineOptions:
    """The [engine] table: how models are computed; it changes numbers by rounding only."""

    backend: Backend = option(
        "auto",
        '"sequential" computes one model at a time and runs every network; "batched" computes '
        'linear layers of all models at once; "vmapped" batches every network that '
        'torch.func.vmap can; "auto" takes the fastest (`coterie.clients.engine.backends.choose`).',
    )
