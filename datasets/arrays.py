"""Arrays of institutions: one .npz for each peer, with the names of `coterie.datasets.per_peer`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from coterie.datasets.own.institutions import natural, words
from coterie.datasets.partition.options import Partition
from coterie.datasets.per_peer import problem_of_arrays, problem_of_node
from coterie.datasets.problem import DataError, Problem

_NAME = "arrays"


@dataclass(frozen=True)
class ArraysOptions:
    """What the run expects of every peer's arrays.

    Attributes
    ----------
    classes : names of the classes in the order of the model's outputs, "healthy, ill"; empty: as
        the arrays of all peers have them. A deployed node wants them named.
    validation : share held out for validation where there is no such part; "auto": none here, and
        what the method needs where a run is configured.
    """

    classes: str = ""
    validation: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.validation != "auto" and not 0 <= self.validation < 1:
            raise ValueError("validation must be at least 0 and below 1")


@lru_cache(maxsize=2)
def load_arrays(
    partition: Partition, peers: int, seed: int, data_dir: Path, options: ArraysOptions
) -> Problem:
    """The problem of a simulation: every *.npz in data-dir is a peer, named as the file."""
    files = sorted(data_dir.glob("*.npz"), key=lambda path: natural(path.name))
    if len(files) != peers:
        raise DataError(
            f"data-dir {data_dir} has {len(files)} files *.npz: {peers} peers need one each"
        )
    data = [_read(path, options) | {"name": path.stem} for path in files]
    problem = problem_of_arrays(_NAME, data, Partition(validation=options.validation), peers, seed)
    return replace(problem, validation_key=f"{_NAME}.validation")


@lru_cache(maxsize=2)
def load_own_arrays(
    peer: int, peers: int, seed: int, data_dir: Path, options: ArraysOptions
) -> Problem:
    """The problem of a deployed node, whose data-dir has one *.npz."""
    files = sorted(data_dir.glob("*.npz"))
    if len(files) != 1:
        raise DataError(f"{_NAME}: this peer's data-dir must have one *.npz")
    return problem_of_node(_NAME, [_read(files[0], options)], peer, peers, seed)


def _read(path: Path, options: ArraysOptions) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            found: dict[str, Any] = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, BadZipFile):
        raise DataError(
            f"{_NAME}: {path.name} cannot be read, or holds more than numbers"
        ) from None
    return found | ({"classes": words(options.classes)} if options.classes else {})
