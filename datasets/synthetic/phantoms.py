"""Phantoms: synthetic head scans of three scanners, with masks of the brain.

A stand-in for IXI that needs no download. A head is an ellipsoid of brain in a shell of skull, with
random position and size and Gaussian noise. The scanners differ in the brightness of brain and
skull, so that the brain of one looks like the skull of another. Results on phantoms say nothing
about brain scans.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.datasets.problem import Floats
from coterie.datasets.source import Source, divided, spread

SIDE = 8  # voxels
SUBJECTS = (50, 29, 12)  # per scanner; IXI Tiny's three hospitals have 311, 181 and 74
BRIGHTNESS = ((1.0, 0.5), (0.5, 1.0), (0.75, 0.75))  # of brain and skull, per scanner
NOISE = 0.3
TESTED = 0.2
_SEED = 0x1C1


def read_phantoms(data_dir: Path) -> Source:
    """Make the phantoms: (1, 8, 8, 8), 2 classes of voxels, 73 + 18; the groups are scanners."""
    scanner = np.repeat(np.arange(len(SUBJECTS)), SUBJECTS)
    depth_n = [_depths(np.random.default_rng([_SEED, n, 0])) for n in range(len(scanner))]
    volumes = [
        _scan(depth, *BRIGHTNESS[scanner[n]], np.random.default_rng([_SEED, n, 1]))
        for n, depth in enumerate(depth_n)
    ]
    rows_s = [np.flatnonzero(scanner == number) for number in range(len(SUBJECTS))]
    return divided(
        name="phantoms",
        inputs=np.stack(volumes)[:, None].astype(np.float32),
        targets=np.stack([depth <= 1 for depth in depth_n]).astype(np.uint8),
        test=np.concatenate([spread(rows, round(TESTED * len(rows))) for rows in rows_s]),
        outputs=2,
        task="segmentation",
        groups=scanner,
    )


def _depths(rng: np.random.Generator) -> Floats:
    """Return the distance of each voxel from the centre of the brain; 1 at its surface."""
    centre = (SIDE - 1) / 2 + rng.uniform(-0.7, 0.7, 3)
    radii = rng.uniform(1.6, 2.6, 3)
    away = (np.indices((SIDE,) * 3).T - centre) / radii
    depths: Floats = np.sqrt(np.square(away).sum(axis=-1)).T
    return depths


def _scan(depth: Floats, brain: float, skull: float, rng: np.random.Generator) -> Floats:
    """Simulate the scan of a head, standardised."""
    shell = (depth > 1) & (depth <= 1.5)
    voxels = brain * (depth <= 1) + skull * shell + NOISE * rng.standard_normal(depth.shape)
    scan: Floats = (voxels - voxels.mean()) / voxels.std()
    return scan
