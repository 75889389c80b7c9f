"""Images dealt evenly among any number of peers, the test images too.

`dataset = "benchmarks.dealt:images"` with `partition.kind = "natural"`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.datasets.published.images import read_fashion_mnist
from coterie.datasets.source import Source


def images(data_dir: Path, peers: int, seed: int) -> Source:
    """Fashion-MNIST."""
    return dealt(read_fashion_mnist(data_dir), peers, seed)


def dealt(source: Source, peers: int, seed: int) -> Source:
    """A source whose examples belong to the peers in turn, each part in random order."""
    groups = np.empty(len(source.targets), dtype=np.int64)
    for rows in (source.train, source.test):
        groups[np.random.default_rng(seed).permutation(rows)] = np.arange(len(rows)) % peers
    return replace(source, groups=groups)
