"""Arrays of institutions: an .npz file per peer, with the keys of `coterie.datasets.per_peer`."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from coterie.datasets.files.fingerprint import content, record, recorded, remembered
from coterie.datasets.own.institutions import natural, words
from coterie.datasets.partition.options import Partition
from coterie.datasets.per_peer import problem_of_arrays, problem_of_node
from coterie.datasets.problem import DataError, Problem
from coterie.ranges import option

_NAME = "arrays"


@dataclass(frozen=True)
class ArraysOptions:
    """Options of the data set "arrays"."""

    classes: str = option(
        "",
        'Names of the classes in the order of the model\'s outputs, "healthy, ill"; empty to use '
        "those in the arrays of all peers (simulations only).",
    )
    validation: float | Literal["auto"] = option(
        "auto",
        "Share of the training examples held out for validation where a file has no validation "
        'part; "auto" is the share that the method needs.',
        low=0,
        below=1,
    )


@remembered(2)
def load_arrays(
    partition: Partition, peers: int, seed: int, data_dir: Path, options: Any
) -> Problem:
    """Load a simulation: every *.npz in data-dir is a peer, named like the file."""
    record(data_dir)
    files = sorted(data_dir.glob("*.npz"), key=lambda path: natural(path.name))
    if len(files) != peers:
        raise DataError(
            f"data-dir {data_dir} has {len(files)} files *.npz, but peers = {peers}: each peer "
            "needs one"
        )
    data, files_p = [], []
    for path in files:
        with recorded() as reads:
            data.append(_read(path, options) | {"name": path.stem})
        files_p.append(reads.files(data_dir))
    problem = problem_of_arrays(_NAME, data, Partition(validation=options.validation), peers, seed)
    return replace(problem, validation_key=f"{_NAME}.validation", files=tuple(files_p))


@remembered(2)
def load_own_arrays(peer: int, peers: int, seed: int, data_dir: Path, options: Any) -> Problem:
    """Load a deployed node, whose data-dir has one *.npz."""
    record(data_dir)
    files = sorted(data_dir.glob("*.npz"))
    if len(files) != 1:
        raise DataError(f"{_NAME}: this peer's data-dir must have one *.npz, not {len(files)}")
    with recorded() as reads:
        data = [_read(files[0], options)]
    problem = problem_of_node(_NAME, data, peer, peers, seed)
    return replace(problem, files=(reads.files(data_dir),) * peers)


def _read(path: Path, options: ArraysOptions) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(content(path)), allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, BadZipFile):
        raise DataError(
            f"{_NAME}: {path.name} is damaged, or has arrays that need pickle: write it with "
            "numpy.savez from arrays of numbers or text"
        ) from None
    return arrays | ({"classes": words(options.classes)} if options.classes else {})
