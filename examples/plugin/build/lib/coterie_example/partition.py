"""Shares that grow: the second peer holds twice as much as the first one, and so on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie import Source


def growing(source: Source, peers: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """The training rows of each peer; without more, everybody is tested on everything."""
    rows = np.random.default_rng(seed).permutation(source.train)
    ends = np.cumsum(np.arange(1, peers + 1)) * len(rows) // (peers * (peers + 1) // 2)
    return np.split(rows, ends[:-1])
