"""Quadratic losses from a JSON file, one per peer, for exact checks of methods.

Peer i's loss is f_i(theta) = 1/2 sum_j a_ij (theta_j - c_ij)^2 and its stochastic gradient adds
s_i N(0, I). The keys of the file are

    curvature          [[a_i1 .. a_id], ...]    n rows, >= 0
    centre             [[c_i1 .. c_id], ...]    n rows
    noise              [s_1 .. s_n]             >= 0
    start              [d numbers], or n such rows for one start each
    samples            [n_1 .. n_n]             optional, integers >= 1, default 1
    validation_centre  [[..], ...]              optional, n rows: centres of the validation loss

Other keys are ignored unless they look like a misspelling of one of these.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from coterie.datasets.files.fingerprint import content, recorded
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Floats, Ints, Problem, Split
from coterie.ranges import option

REQUIRED = ("curvature", "centre", "noise", "start")
OPTIONAL = ("samples", "validation_centre")


@dataclass(frozen=True)
class QuadraticOptions:
    """Options of the quadratic problem."""

    file: str = option("", "path JSON file of the losses.", path=True)


def load_quadratic(
    partition: Partition, peers: int, seed: int, data_dir: Path, options: object
) -> Problem:
    """Read the problem in `options.file`, float64; partition, seed and data_dir are ignored.

    Pool row i is peer i's [curvature, centre]; row n + i the same with the validation centre, if
    the file has one. DataError: the file is missing, invalid, or has another number of peers.
    """
    assert isinstance(options, QuadraticOptions)
    if not options.file:
        raise DataError('quadratic.file: name the JSON file, e.g. quadratic.file="problem.json"')
    with recorded() as reads:
        table = _Table(options.file)
    curvature = table.matrix("curvature", peers, None, minimum=0.0)
    d = curvature.shape[1]
    centre = table.matrix("centre", peers, d)
    noise = table.vector("noise", peers, minimum=0.0)
    start = table.start(peers, d)
    samples = table.samples(peers)
    rows = np.arange(peers)
    pool = np.stack([curvature, centre], axis=1)
    validation = rows
    if "validation_centre" in table.values:
        centres = table.matrix("validation_centre", peers, d)
        pool = np.concatenate([pool, np.stack([curvature, centres], axis=1)])
        validation = rows + peers
    return Problem(
        name="quadratic",
        task="quadratic",
        inputs=pool,
        train=_one_each(rows),
        validation=_one_each(validation),
        test=_one_each(rows),
        outputs=d,
        mean=np.zeros((1, 1)),
        std=np.ones((1, 1)),
        samples=samples,
        start=start,
        noise=noise,
        files=(reads.files(Path(options.file).parent),) * peers,
    )


def _one_each(rows: Ints) -> Split:
    return Split(tuple(rows[:, None].copy()), tuple(np.zeros((len(rows), 1))))


class _Table:
    """Content of the file, with checked access to its keys."""

    def __init__(self, file: str) -> None:
        self.file = file
        try:
            self.values = json.loads(content(Path(file)).decode("utf-8-sig"))
        except OSError as error:
            raise DataError(f"quadratic.file: cannot read {file}: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"quadratic.file: {file} is not JSON: {error}") from None
        if not isinstance(self.values, dict):
            raise DataError(f"quadratic.file: {file} must hold one JSON object")
        known = (*REQUIRED, *OPTIONAL)
        for key in self.values:
            nearest = get_close_matches(key, known, n=1, cutoff=0.75)
            if key not in known and nearest:
                raise self.error(key, f"unknown key; did you mean `{nearest[0]}`?")
        for key in REQUIRED:
            if key not in self.values:
                raise self.error(key, "missing")

    def error(self, key: str, problem: str) -> DataError:
        return DataError(f"quadratic.file: {self.file}: `{key}`: {problem}")

    def vector(self, key: str, size: int, minimum: float = -np.inf) -> Floats:
        return self._numbers(key, self.values[key], size, minimum, "the list")

    def matrix(self, key: str, n: int, d: int | None, minimum: float = -np.inf) -> Floats:
        """Return a matrix (n, d); d = None takes the length of the first row."""
        rows = self.values[key]
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise self.error(key, "must be a list of one list per peer")
        if len(rows) != n:
            raise self.error(key, f"has {len(rows)} rows but peers = {n}")
        size = len(rows[0]) if d is None else d
        if not size:
            raise self.error(key, "has an empty row")
        return np.stack(
            [self._numbers(key, row, size, minimum, f"row {i}") for i, row in enumerate(rows)]
        )

    def start(self, n: int, d: int) -> Floats:
        value = self.values["start"]
        if isinstance(value, list) and any(isinstance(row, list) for row in value):
            return self.matrix("start", n, d)
        return np.tile(self.vector("start", d), (n, 1))

    def samples(self, n: int) -> Ints:
        if "samples" not in self.values:
            return np.ones(n, dtype=np.int64)
        values = self.vector("samples", n, minimum=1)
        if np.any((values != np.floor(values)) | (values > 2**53)):
            raise self.error("samples", "must be integers of at most 2^53")
        return values.astype(np.int64)

    def _numbers(self, key: str, values: Any, size: int, minimum: float, part: str) -> Floats:
        if not isinstance(values, list):
            raise self.error(key, "must be a list of numbers")
        if len(values) != size:
            raise self.error(key, f"{part} has {len(values)} numbers, expected {size}")
        if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
            raise self.error(key, f"{part} has an entry that is not a number")
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:  # an integer beyond float64
            raise self.error(key, f"{part} has a number that is not finite") from None
        if not np.all(np.isfinite(numbers)):
            raise self.error(key, f"{part} has a number that is not finite")
        if np.any(numbers < minimum):
            raise self.error(key, f"{part} has a number below {minimum:g}")
        return numbers
