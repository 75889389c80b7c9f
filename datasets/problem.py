"""What n peers learn from: one pool of examples and each peer's rows in it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.preprocessing import Preprocessing
from coterie.errors import Error

Task = Literal["classification", "regression", "quadratic", "language", "segmentation"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class DataError(Error, ValueError):
    """A data set or a partition that cannot be had as asked; names the key and the remedy."""


@dataclass(frozen=True, eq=False)
class Split:
    """Who holds which examples, for one of train, validation and test.

    Attributes
    ----------
    rows : peer i's rows in the pool, int64 (n_i,).
    targets : peer i's targets in the same order, after any permutation or flip of the labels:
        int64 (n_i,) for classes, float (n_i, k) for regression; language: (n_i, T), the token
        after each one of the example; segmentation: uint8 (n_i, X, Y, Z), the class of each voxel.
    """

    rows: tuple[Ints, ...]
    targets: tuple[npt.NDArray[Any], ...]

    @property
    def sizes(self) -> Ints:
        """(n,) number of examples of each peer."""
        return np.array([len(rows) for rows in self.rows], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Problem:
    """What n peers learn from. All arrays are made read-only: a problem is shared and cached.

    Attributes
    ----------
    name : the data set's name.
    task : "classification", "regression", "quadratic", "language" or "segmentation".
    inputs : (N, *shape) pool, every example once; images stay uint8 (C, H, W).
        Quadratic: (N, 2, d) float64 rows [curvature, centre]. Language: (N, T) whole numbers,
        T tokens in a row; a model gets them as int64 and not normalised. Segmentation:
        (N, 1, X, Y, Z) volumes.
    train, validation, test : who holds what. Validation is empty where none was set aside.
    outputs : number of classes (of a voxel, where it is segmentation; 0 is background), of
        regression outputs, of tokens in the vocabulary, or dimension of theta.
    mean, std : float64, broadcast over `shape`: normalised input = (raw - mean) / std. From the
        source's training examples only, so they depend neither on the seed nor on the partition.
        Not used for tokens.
    samples : (n,) the n_i behind the weights p_i: training sizes; quadratic: its `samples`.
    clusters : (n,) true cluster of each peer where the split makes clusters, else None
        (label-flip: 0 honest, 1 flipped).
    start : (n, d) prescribed start (quadratic), else None.
    noise : (n,) standard deviation of the gradient noise (quadratic), else None.
    validation_key : the configuration key that sets examples aside for validation, where one does.
    names : what people call each peer (folders, hospitals, languages); empty where nothing names
        them.
    classes : what people call each class, in the order of the outputs; empty where nothing does, or
        where peers mean different things by a class.
    preprocessing : how each peer made `inputs` of its raw examples; None of a peer whose data are
        elsewhere. Empty where `inputs` are the raw examples.
    """

    name: str
    task: Task
    inputs: npt.NDArray[Any]
    train: Split
    validation: Split
    test: Split
    outputs: int
    mean: Floats
    std: Floats
    samples: Ints
    clusters: Ints | None = None
    start: Floats | None = None
    noise: Floats | None = None
    validation_key: str = ""
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    preprocessing: tuple[Preprocessing | None, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            arrays = (*value.rows, *value.targets) if isinstance(value, Split) else (value,)
            for array in arrays:
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)

    @property
    def peers(self) -> int:
        """Number of peers n."""
        return len(self.samples)

    def rarest_class(self, peer: int) -> int:
        """Test examples that a peer has of the class it has fewest of; 0 without classes."""
        if self.task != "classification":
            return 0
        counts = np.bincount(self.test.targets[peer])
        return int(min(counts[counts > 0], default=0))

    def describe(self) -> list[dict[str, Any]]:
        """Statistics of the split, ready for printing or JSON.

        Returns
        -------
        One row per peer: "peer", "name", "cluster" (or None), "samples" (its n_i), and for each
        of "train", "validation" and "test" a dict of "size" and "labels", the count of each class
        (None without classes).
        """
        return [
            {
                "peer": peer,
                "name": self.names[peer] if self.names else f"peer {peer}",
                "cluster": None if self.clusters is None else int(self.clusters[peer]),
                "samples": int(self.samples[peer]),
                "train": self._count(self.train, peer),
                "validation": self._count(self.validation, peer),
                "test": self._count(self.test, peer),
            }
            for peer in range(self.peers)
        ]

    def _count(self, split: Split, peer: int) -> dict[str, Any]:
        labels = None
        if self.task == "classification":
            labels = np.bincount(split.targets[peer], minlength=self.outputs).tolist()
        return {"size": len(split.rows[peer]), "labels": labels}
