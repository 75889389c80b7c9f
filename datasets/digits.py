"""The 1,797 real 8x8 digits that scikit-learn ships (UCI optical recognition of digits)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datasets.source import Source


def read_digits(data_dir: Path) -> Source:
    """Digits 0 to 9, (1, 8, 8) uint8 of 0 to 16; `data_dir` is not used.

    The test set is every fifth digit in the order (label, position): stratified, 360 of 1,797,
    and the same for ever, whatever the seed.
    """
    pixels, labels = _packaged()
    test = np.zeros(len(labels), dtype=bool)
    test[np.argsort(labels, kind="stable")[::5]] = True
    return Source(
        name="digits",
        inputs=pixels.reshape(-1, 1, 8, 8),
        targets=labels,
        train=np.flatnonzero(~test),
        test=np.flatnonzero(test),
        outputs=10,
    )


def _packaged() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels (N, 64) and labels (N,) from the file that `sklearn.datasets.load_digits` reads.

    Read here because its import takes a second, in every process of a run.
    """
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.origin is not None
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1], table[:, -1].astype(np.int64)
