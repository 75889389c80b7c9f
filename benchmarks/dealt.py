"""Fashion-MNIST with training and test images dealt evenly to any number of peers.

`dataset = "benchmarks.dealt:images"` with `partition.kind = "natural"`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.datasets.published.images import read_fashion_mnist
from coterie.datasets.source import Source


def images(data_dir: Path, peers: int, seed: int) -> Source:
    """Read Fashion-MNIST."""
    return dealt(read_fashion_mnist(data_dir), peers, seed)


def dealt(source: Source, peers: int, seed: int) -> Source:
    """Return a source whose examples are dealt to the peers in turn, in random order."""
    groups = np.empty(len(source.targets), dtype=np.int64)
    for rows in (source.train, source.test):
        groups[np.random.default_rng(seed).permutation(rows)] = np.arange(len(rows)) % peers
    return replace(source, groups=groups)
