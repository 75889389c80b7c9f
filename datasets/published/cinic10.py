"""CINIC-10: CIFAR-10 and ImageNet images of the same ten classes (Darlow et al. 2018).

Training and validation sets, 90,000 images each, are one training set (DPFL, appendix F.5).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.datasets.files.cache import Arrays, cached
from coterie.datasets.files.folders import folder_with, images_in, read_image
from coterie.datasets.problem import DataError
from coterie.datasets.published.images import PHOTOGRAPHED
from coterie.datasets.source import Source

PARTS = ("train", "valid", "test")
SIDE = 32
REMEDY = "unpack CINIC-10.tar.gz (https://datashare.ed.ac.uk/handle/10283/3192) there"


def read_cinic10(data_dir: Path) -> Source:
    """Read CINIC-10: (3, 32, 32), 10 classes, 180,000 + 90,000; PNG files in a folder per class."""
    folder = folder_with("cinic10", data_dir, ("cinic10", "CINIC-10"), PARTS, REMEDY)
    files = [
        (part, label, path)
        for part in PARTS
        for label, name in enumerate(PHOTOGRAPHED)
        for path in images_in(folder / part / name)
    ]
    paths = [path for _, _, path in files]

    def read() -> Arrays:
        pool = np.empty((len(paths), 3, SIDE, SIDE), dtype=np.uint8)
        for row, path in zip(pool, paths, strict=True):
            image = read_image(path)
            if image.shape != row.shape:
                raise DataError(f"{path}: {image.shape[1:]} pixels, expected {SIDE}x{SIDE}")
            row[:] = image
        return {"images": pool}

    test = np.array([part == "test" for part, _, _ in files])
    return Source(
        name="cinic10",
        inputs=cached(data_dir, "cinic10", paths, "1", read)["images"],
        targets=np.array([label for _, label, _ in files], dtype=np.int64),
        train=np.flatnonzero(~test),
        test=np.flatnonzero(test),
        outputs=len(PHOTOGRAPHED),
        classes=PHOTOGRAPHED,
    )
