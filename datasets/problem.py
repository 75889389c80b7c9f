"""Learning problem of n peers: one pool of examples and each peer's rows in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.account import Account
from coterie.datasets.preprocessing import Preprocessing, RawTable
from coterie.errors import Error

Task = Literal["classification", "regression", "survival", "quadratic", "language", "segmentation"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class DataError(Error, ValueError):
    """A data set or a partition is missing or invalid; names the key and the remedy."""


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of each peer in the training, validation or test set."""

    rows: tuple[Ints, ...]  # (n_i,), each peer's rows in the pool
    targets: tuple[npt.NDArray[Any], ...]
    """Each peer's targets in the same order, after any permutation or flip of the labels: int64
    (n_i,) for classes; float (n_i, k) for regression; float (n_i, 3) for survival: number of
    intervals survived, 1 for an event or 0 if censored, and time; (n_i, T), the next tokens, for
    language; uint8 (n_i, X, Y, Z), the classes of voxels, for segmentation."""

    @property
    def sizes(self) -> Ints:
        """Number of examples of each peer, (n,)."""
        return np.array([len(rows) for rows in self.rows], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Learning problem of n peers, shared and cached: all arrays are read-only."""

    name: str
    task: Task
    inputs: npt.NDArray[Any]  # (N, *shape)
    """Pool of examples, without duplicates; images are uint8 (C, H, W). Quadratic: float64
    (N, 2, d), [curvature, centre]. Language: tokens (N, T). Segmentation: (N, 1, X, Y, Z)."""
    train: Split
    validation: Split
    test: Split
    """Examples of each peer; validation may be empty."""
    outputs: int
    """Number of classes, regression outputs, intervals of time, or tokens; dimension of theta."""
    mean: Floats
    std: Floats
    """Normalised input = (raw - mean) / std, broadcast over `shape`; the same for any seed."""
    samples: Ints  # (n,)
    """Numbers n_i that define the weights p_i: training sizes; quadratic: its `samples`."""
    clusters: Ints | None = None  # (n,)
    """True cluster of each peer, if any (label-flip: 0 honest, 1 flipped)."""
    start: Floats | None = None  # (n, d), prescribed start (quadratic)
    noise: Floats | None = None  # (n,), standard deviation of the gradient noise (quadratic)
    validation_key: str = ""  # configuration key of the validation share; "" if there is none
    names: tuple[str, ...] = ()
    """Display name of each peer (folder, hospital, language); empty if there are none."""
    classes: tuple[str, ...] = ()
    """Name of each class, or end of each interval of time; empty if peers' labels differ."""
    preprocessing: tuple[Preprocessing | None, ...] = ()
    """Preprocessing of each peer's raw examples, None if elsewhere; empty if `inputs` are raw."""
    table: RawTable | None = None
    """Cells of the rows of `inputs` before preprocessing, if the columns have names."""
    own_test: tuple[bool, ...] = ()
    """True for institutions that divided their test rows themselves, so that no seed does."""
    groups: Ints | None = None  # (N,)
    """Group of each row of `inputs`, such as a patient; None: each row counts for itself."""
    files: tuple[Mapping[str, str], ...] = ()
    """SHA-256 by name of each file that a peer's data were read from; empty if there is none."""
    accounts: tuple[Account | None, ...] = ()
    """Account of each peer's files, if it has images; empty if no data set counts files."""
    left_out: tuple[str, ...] = ()
    """Rows and files of institutions that are not used, in words, for their own eyes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            value = value.cells if isinstance(value, RawTable) else value
            arrays = (*value.rows, *value.targets) if isinstance(value, Split) else (value,)
            for array in arrays:
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)

    @property
    def peers(self) -> int:
        return len(self.samples)

    def sizes(self, peer: int, *, in_groups: bool = False) -> dict[str, int]:
        """Return the number of a peer's examples by split, or of their groups, if there are any."""
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        return {
            name: len({*self._units(part, peer)} if in_groups else part.rows[peer])
            for name, part in parts.items()
        }

    def _units(self, split: Split, peer: int) -> list[int]:
        """Return the group of each of a peer's examples, or a number of its own."""
        rows = split.rows[peer]
        return [*range(len(rows))] if self.groups is None else [*self.groups[rows].tolist()]

    def pooled(self) -> Problem:
        """Return the problem of one peer that has the training examples of all peers.

        The quadratic loss is their `samples`-weighted mean, with the noise of its gradient.
        """
        rows, targets = np.concatenate(self.train.rows), np.concatenate(self.train.targets)
        inputs, noise = self.inputs, self.noise
        p_n = self.samples / self.samples.sum()
        if self.task == "quadratic":
            curvature_nd, centre_nd = inputs[rows].swapaxes(0, 1)
            curvature_d = p_n @ curvature_nd
            centre_d = p_n @ (curvature_nd * centre_nd) / np.where(curvature_d, curvature_d, 1)
            inputs, rows, targets = np.stack([[curvature_d, centre_d]]), rows[:1] * 0, targets[:1]
        if noise is not None:
            noise = np.sqrt([np.square(p_n * noise).sum()])
        nothing = Split((rows[:0],), (targets[:0],))
        return replace(
            self, inputs=inputs, train=Split((rows,), (targets,)), validation=nothing, test=nothing,
            samples=self.samples.sum(keepdims=True), clusters=None, start=None, noise=noise,
            names=(), preprocessing=(), own_test=(), accounts=(),
        )  # fmt: skip

    def rarest_class(self, peer: int) -> int:
        """Return the number of test examples, or groups, of a peer's rarest class (or events)."""
        targets = self.test.targets[peer]
        if self.task == "survival":
            return len({*np.array(self._units(self.test, peer))[targets[:, 1] > 0].tolist()})
        if self.task != "classification":
            return 0
        counts = self._by_class(self.test, peer)
        return int(min(counts[counts > 0], default=0))

    def _by_class(self, split: Split, peer: int) -> Ints:
        """Return the number of groups, or else of examples, of each class."""
        pairs = {*zip(self._units(split, peer), split.targets[peer].tolist(), strict=True)}
        return np.bincount([label for _, label in pairs], minlength=self.outputs)

    def describe(self) -> list[dict[str, Any]]:
        """Return statistics of the partition per peer, for printing or JSON.

        "samples" is n_i; "labels" counts each class; "fixed" in "test" if no seed divides its test
        rows; "account" if images; "groups" and "group_labels" if there are groups.
        """
        return [
            {
                "peer": peer,
                "name": self.names[peer] if self.names else f"peer {peer}",
                "cluster": None if self.clusters is None else int(self.clusters[peer]),
                "samples": int(self.samples[peer]),
                "train": self._count(self.train, peer),
                "validation": self._count(self.validation, peer),
                "test": self._count(self.test, peer)
                | ({"fixed": True} if any(self.own_test[peer : peer + 1]) else {}),
                **({} if account is None else {"account": asdict(account)}),
            }
            for peer, account in enumerate(self.accounts or [None] * self.peers)
        ]

    def _count(self, split: Split, peer: int) -> dict[str, Any]:
        labels = None
        if self.task == "classification":
            labels = np.bincount(split.targets[peer], minlength=self.outputs).tolist()
        counts = {"size": len(split.rows[peer]), "labels": labels}
        if self.groups is None:
            return counts
        of_class = None if labels is None else self._by_class(split, peer).tolist()
        return counts | {"groups": len({*self._units(split, peer)}), "group_labels": of_class}
