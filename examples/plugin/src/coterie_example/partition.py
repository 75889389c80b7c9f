"""Partition `growing`: peer k has (k + 1) times as many examples as peer 0."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie import Source


def growing(source: Source, peers: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """Return the training rows of each peer; all peers use the whole test set."""
    rows = np.random.default_rng(seed).permutation(source.train)
    ends = np.cumsum(np.arange(1, peers + 1)) * len(rows) // (peers * (peers + 1) // 2)
    return np.split(rows, ends[:-1])
