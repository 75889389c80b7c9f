"""Arrays of institutions: one .npz for each peer, examples `x` and targets `y`.

`x_test`, `y_test`, `x_validation` and `y_validation` are parts that are set aside; a part that is
not there is drawn. Whole numbers in `y` are classes, others numbers to be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    held,
    numbers,
    words,
)
from datasets.problem import DataError, Task

SUFFIX = ".npz"


@dataclass(frozen=True)
class ArraysOptions(HeldOptions):
    """What the run expects of every institution's arrays.

    Attributes
    ----------
    classes : names of the classes 0, 1, ... in `y`, "healthy, ill", or how many there are, "10";
        empty: `y` are numbers to be predicted.
    """

    classes: str = ""

    def __post_init__(self) -> None:
        self.check_held(None)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes by name; numbers name them where only their count is known."""
        if self.classes.isdecimal():
            return tuple(map(str, range(int(self.classes))))
        return tuple(words(self.classes))


def read_arrays(
    where: Path, options: ArraysOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's arrays: a file, or the only one in a folder.

    Raises
    ------
    DataError
        They are not what the run expects, or no file is there.
    """
    files = sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else [where]
    if len(files) != 1:
        raise DataError(f"arrays: expected one {SUFFIX} in this peer's data-dir, not {len(files)}")
    try:
        with np.load(files[0], allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, BadZipFile) as error:
        raise RefusedError(f"arrays: {files[0].name} cannot be read", [str(error)]) from None
    parts = {
        part: _part(found, "" if part == "train" else f"_{part}", options)
        for part in PARTS
        if part == "train" or f"x_{part}" in found
    }
    inputs, targets = parts["train"]
    for own, _ in parts.values():
        if own.shape[1:] != inputs.shape[1:]:
            raise DataError(f"arrays: examples of {own.shape[1:]} and of {inputs.shape[1:]}")
    channels = (-1, *[1] * (inputs.ndim - 2))
    mean, std = (
        None if values is None else values.reshape(channels)
        for values in (
            numbers("mean", options.mean, inputs.shape[1]),
            numbers("std", options.std, inputs.shape[1]),
        )
    )
    task: Task = "classification" if options.names else "regression"
    outputs = len(options.names) or targets.shape[1]
    names = () if options.classes.isdecimal() else options.names
    expected = Expected("arrays", task, outputs, mean, std, names)
    return expected, held(expected, parts, options, seed, peer)


def _part(
    found: dict[str, npt.NDArray[Any]], suffix: str, options: ArraysOptions
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        x, y = found[f"x{suffix}"], found[f"y{suffix}"]
    except KeyError as error:
        raise DataError(f"arrays: there is no {error.args[0]}") from None
    if x.dtype.kind not in "fiub" or x.ndim < 2 or len(x) != len(y):
        raise DataError(f"arrays: x{suffix} and y{suffix} must be numbers, a row for each example")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"arrays: x{suffix} has numbers that are missing or not finite")
    if not options.names:
        if y.dtype.kind not in "fiu" or not np.isfinite(y).all():
            raise DataError(f"arrays: y{suffix} must be finite numbers")
        return x, y.reshape(len(y), -1).astype(np.float64)
    if y.dtype.kind not in "iub" or y.ndim != 1:
        raise DataError(f"arrays: y{suffix} must be classes, a whole number for each example")
    y = y.astype(np.int64)
    if len(y) and not (y.min() >= 0 and y.max() < len(options.names)):
        raise DataError(f"arrays: y{suffix} has classes beyond the run's {len(options.names)}")
    return x, y
