"""Data set as published: examples, targets and a train/test split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.preprocessing import RawTable
from coterie.datasets.problem import DataError, Floats, Ints, Task

Tokens = npt.NDArray[Any]
CHUNK = 4096  # rows converted to float64 at a time


@dataclass(frozen=True, eq=False)
class Source:
    """Data set before it is partitioned among peers (`coterie.datasets.partition.split`)."""

    name: str
    inputs: npt.NDArray[Any]  # (N, *shape), training and test examples; images are uint8 (C, H, W)
    targets: npt.NDArray[Any]  # (N, ...), see `coterie.datasets.problem.Split`
    train: Ints
    test: Ints
    """Rows of the training and of the test set."""
    outputs: int  # see `coterie.datasets.problem.Problem`
    task: Task = "classification"  # see `coterie.datasets.problem.Problem`
    groups: Ints | None = None  # (N,), origin of each example (writer, hospital), if known
    group_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Names of the groups and of the classes, by number; may be empty."""
    table: RawTable | None = None
    """Cells of the rows of `inputs` before preprocessing, if the columns have names."""

    @cached_property
    def normalisation(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation per channel (axis 1) of the training examples.

        Shaped to broadcast over an example: (C, 1, 1) for images. A constant channel has std 1.
        Tokens are not normalised: 0 and 1.
        """
        if self.task == "language":
            return np.zeros(1), np.ones(1)
        axes = (0, *range(2, self.inputs.ndim))
        total: Floats = np.zeros(self.inputs.shape[1])
        squares: Floats = np.zeros(self.inputs.shape[1])
        for first in range(0, len(self.train), CHUNK):
            chunk = self.inputs[self.train[first : first + CHUNK]].astype(np.float64)
            total += chunk.sum(axis=axes)
            squares += np.square(chunk).sum(axis=axes)
        count = len(self.train) * np.prod(self.inputs.shape[2:])
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        shape = (-1, *[1] * (self.inputs.ndim - 2))
        return mean.reshape(shape), np.where(std > 0, std, 1.0).reshape(shape)


def divided(
    name: str, inputs: npt.NDArray[Any], targets: Any, test: Ints, outputs: int, **more: Any
) -> Source:
    """Make a source of examples and the rows of those in the test set."""
    train = np.setdiff1d(np.arange(len(targets)), test)
    return Source(name, inputs, targets, train, np.sort(test), outputs, **more)


def spread(rows: Ints, count: int) -> Ints:
    """Select `count` evenly spaced rows; stratified if the rows are sorted by class."""
    return rows[(2 * np.arange(count) + 1) * len(rows) // (2 * max(count, 1))]


def examples_of(tokens: Tokens, context: int, part: str) -> tuple[Tokens, Tokens]:
    """Cut tokens into rows (N, context) and the tokens after each; DataError: there are too few."""
    count = (len(tokens) - 1) // context
    if count < 1:
        raise DataError(f"{part} has fewer than {context + 1} tokens, the minimum for an example")
    inputs = tokens[: count * context].reshape(count, context)
    return inputs, tokens[1 : count * context + 1].reshape(count, context)
