"""MNIST's and CIFAR's files, a few images each, byte for byte in the published formats."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.published.images import IDX_FILES

RNG = np.random.default_rng(0)
TRAIN, TEST = (
    (RNG.integers(256, size=(n, 28, 28), dtype=np.uint8), RNG.permutation(np.arange(n) % 10))
    for n in (40, 20)
)


def idx(array: npt.NDArray[Any]) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def gz(content: bytes) -> bytes:
    """Compress without a time stamp: the test's name must not change."""
    return gzip.compress(content, mtime=0)


def write_idx(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name, array in zip(IDX_FILES, (*TRAIN, *TEST), strict=True):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return folder


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode("latin1")


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def cifar_batch(label_key: str, labels: list[int], images: npt.NDArray[np.uint8]) -> bytes:
    """A batch as Python 2 pickled it (protocol 2): byte strings, `numpy.core.multiarray`."""
    dtype = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) * 2 + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n"
    array += number(0) + b"\x85" + text("b") + b"\x87R"
    raw = images.tobytes()
    array += b"(" + number(1) + number(len(images)) + number(3072) + b"\x86" + dtype
    array += b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(label_key) + listed + b"u."


IMAGES = RNG.integers(256, size=(12, 3072), dtype=np.uint8)


def write_cifar100(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "train").write_bytes(cifar_batch("fine_labels", [99, 0, 50], IMAGES[:3]))
    (folder / "test").write_bytes(cifar_batch("fine_labels", [7], IMAGES[3:4]))
    return folder


def write_cifar10(folder: Path) -> Path:
    folder.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in (1, 2, 3, 4, 5)] + ["test_batch"]
    for i, name in enumerate(names):
        batch = cifar_batch("labels", [i, 9 - i], IMAGES[2 * i : 2 * i + 2])
        (folder / name).write_bytes(batch)
    return folder
