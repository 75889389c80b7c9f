"""A data set as it was published: examples, targets and its own train/test split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.problem import Floats, Ints, Task

CHUNK = 4096  # rows converted to float64 at a time


@dataclass(frozen=True, eq=False)
class Source:
    """Examples before they are divided; `coterie.datasets.partition.options` divides them among peers.

    Attributes
    ----------
    name : the data set's name.
    inputs : (N, *shape) every example, train and test; images uint8 (C, H, W).
    targets : (N, ...), see `coterie.datasets.problem.Split`.
    train, test : disjoint rows.
    outputs, task : see `coterie.datasets.problem.Problem`.
    groups : int64 (N,) who an example comes from (writer, hospital), where that is known.
    group_names, classes : what people call groups and classes, by number; empty where nothing does.
    """

    name: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    train: Ints
    test: Ints
    outputs: int
    task: Task = "classification"
    groups: Ints | None = None
    group_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @cached_property
    def normalisation(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation per channel (axis 1) of the training examples.

        Shaped to broadcast over one example: (C, 1, 1) for images. A constant channel has std 1.
        Tokens are names, not quantities: 0 and 1.
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


def spread(rows: Ints, count: int) -> Ints:
    """`count` of the rows at even distances: a stratified choice if the rows are sorted."""
    return rows[(2 * np.arange(count) + 1) * len(rows) // (2 * max(count, 1))]
