"""Image data sets in their published formats: IDX (MNIST's), CIFAR's, and CINIC-10's PNG files.

CINIC-10's training and validation sets are one training set (DPFL, appendix F.5).
"""

from __future__ import annotations

import io
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import Arrays, cached
from coterie.datasets.files.folders import folder_with, images_in, read_image, unpacked
from coterie.datasets.files.locate import Published
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source, divided

Images = npt.NDArray[np.uint8]

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FASHION_MNIST = Published(
    "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", IDX_FILES, "dataset-fashion-mnist"
)
MNIST = Published("mnist", "MNIST", "MNIST/raw", IDX_FILES)
CIFAR10 = Published(
    "cifar10",
    "CIFAR10",
    "cifar-10-batches-py",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
)
CLOTHES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
PHOTOGRAPHED = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CIFAR100 = Published("cifar100", "CIFAR100", "cifar-100-python", ("train", "test"))


def _source(
    name: str, parts: list[tuple[Images, Ints]], outputs: int, classes: tuple[str, ...]
) -> Source:
    """Make a source of parts, the last of which is the test set."""
    images, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    test = np.arange(len(labels) - len(parts[-1][1]), len(labels))
    return divided(name, images, labels, test, outputs, classes=classes)


def _checked(path: Path, images: Images, labels: Ints, outputs: int) -> tuple[Images, Ints]:
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(labels)} labels for {len(images)} images; download it again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < outputs:
        raise DataError(f"{path}: labels outside 0 to {outputs - 1}; download it again")
    return images, labels


def _read_idx_source(published: Published, classes: tuple[str, ...], data_dir: Path) -> Source:
    """Read images (1, 28, 28) of 10 classes, 60,000 + 10,000."""
    paths = published.locate(data_dir)
    parts = [
        _checked(
            labels,
            read_idx(images, dimensions=3)[:, None],
            read_idx(labels, dimensions=1).astype(np.int64),
            outputs=10,
        )
        for images, labels in (paths[:2], paths[2:])
    ]
    return _source(published.name, parts, 10, classes)


read_fashion_mnist = partial(_read_idx_source, FASHION_MNIST, CLOTHES)
read_mnist = partial(_read_idx_source, MNIST, ())


def read_idx(path: Path, dimensions: int) -> Images:
    """Read the unsigned bytes of an IDX file, plain or .gz (format: LeCun's MNIST page)."""
    # DataError: the file has another format or is truncated.
    raw = unpacked(path)
    start = 4 + 4 * dimensions
    if raw[:4] != bytes((0, 0, 8, dimensions)) or len(raw) < start:
        raise DataError(
            f"{path}: not an IDX file of bytes in {dimensions} dimensions; download it again"
        )
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", dimensions, offset=4))
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{path}: {len(raw) - start} bytes of data, but the header declares "
            f"{math.prod(shape)}; download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _read_cifar_source(
    published: Published, label_key: str, outputs: int, classes: tuple[str, ...], data_dir: Path
) -> Source:
    """Read images (3, 32, 32), 50,000 + 10,000; CIFAR-100's have the 100 fine classes."""
    parts = [_read_cifar(path, label_key, outputs) for path in published.locate(data_dir)]
    return _source(published.name, parts, outputs, classes)


read_cifar10 = partial(_read_cifar_source, CIFAR10, "labels", 10, PHOTOGRAPHED)
read_cifar100 = partial(_read_cifar_source, CIFAR100, "fine_labels", 100, ())


def _read_cifar(path: Path, label_key: str, outputs: int) -> tuple[Images, Ints]:
    """Read a batch of CIFAR's Python version: a dict with "data" (n, 3072) and a list of labels."""
    raw = unpacked(path)
    try:
        batch: Any = _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
        images = batch["data"].reshape(-1, 3, 32, 32)
        labels = np.array(batch[label_key], dtype=np.int64)
        if images.dtype != np.uint8:
            raise TypeError(f"images are {images.dtype}")
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path}: not a CIFAR batch ({error}); download it again") from None
    return _checked(path, images, labels, outputs)


ALLOWED = {  # globals of CIFAR's files, by their old names in NumPy
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of NumPy arrays, lists, dicts and text; rejects all other objects, runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return ALLOWED[module, name]


CINIC10_PARTS = ("train", "valid", "test")
SIDE = 32
CINIC10_REMEDY = "unpack CINIC-10.tar.gz (https://datashare.ed.ac.uk/handle/10283/3192) there"


def read_cinic10(data_dir: Path) -> Source:
    """Read CINIC-10: (3, 32, 32), 10 classes, 180,000 + 90,000; PNG files in a folder per class."""
    folder = folder_with(
        "cinic10", data_dir, ("cinic10", "CINIC-10"), CINIC10_PARTS, CINIC10_REMEDY
    )
    files = [
        (part, label, path)
        for part in CINIC10_PARTS
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

    return divided(
        name="cinic10",
        inputs=cached(data_dir, "cinic10", paths, "1", read)["images"],
        targets=np.array([label for _, label, _ in files], dtype=np.int64),
        test=np.flatnonzero([part == "test" for part, _, _ in files]),
        outputs=len(PHOTOGRAPHED),
        classes=PHOTOGRAPHED,
    )
