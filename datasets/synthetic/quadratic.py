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
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, MultipleOf

from coterie.datasets.files.fingerprint import content, recorded
from coterie.datasets.problem import DataError, Floats, Ints, Problem, Split
from coterie.ranges import option

NonNegative = Annotated[float, Ge(0)]
Count = Annotated[float, Ge(1), Le(2**53), MultipleOf(1)]


@dataclass(frozen=True)
class QuadraticOptions:
    """Options of the quadratic problem."""

    file: str = option("", "path JSON file of the losses.", path=True)


def load_quadratic(peers: int, seed: int, options: QuadraticOptions) -> Problem:
    """Read the problem in `options.file`, float64; the seed draws nothing."""
    # Pool row i is peer i's [curvature, centre]; row n + i the same with the validation centre, if
    # the file has one. DataError: the file is missing, invalid, or has another number of peers.
    if not options.file:
        raise DataError('quadratic.file: name the JSON file, e.g. quadratic.file="problem.json"')
    with recorded() as reads:
        file = _File(options.file, peers)
    losses = file.losses
    curvature = file.rows("curvature")
    d = curvature.shape[1]
    pool = np.stack([curvature, file.rows("centre", d)], axis=1)
    validation = rows = np.arange(peers)
    if losses.validation_centre is not None:
        centres = file.rows("validation_centre", d)
        pool = np.concatenate([pool, np.stack([curvature, centres], axis=1)])
        validation = rows + peers
    is_common = not isinstance(losses.start[0], list) if losses.start else True
    start = np.tile(file.vector("start", d), (peers, 1)) if is_common else file.rows("start", d)
    samples = np.ones(peers) if losses.samples is None else file.vector("samples", peers)
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
        samples=samples.astype(np.int64),
        start=start,
        noise=file.vector("noise", peers),
        files=(reads.files(Path(options.file).parent),) * peers,
    )


def _one_each(rows: Ints) -> Split:
    return Split(tuple(rows[:, None].copy()), tuple(np.zeros((len(rows), 1))))


@dataclass
class _Losses:
    """Content of the file."""

    curvature: list[list[NonNegative]]
    centre: list[list[float]]
    noise: list[NonNegative]
    start: list[float] | list[list[float]]
    samples: list[Count] | None = None
    validation_centre: list[list[float]] | None = None
    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False}


class _File:
    """The file, with checked shapes."""

    def __init__(self, file: str, peers: int) -> None:
        from pydantic import TypeAdapter, ValidationError  # slow to import

        self.file, self.peers = file, peers
        try:
            text = content(Path(file)).decode("utf-8-sig")
            keys = json.loads(text)
        except OSError as error:
            raise DataError(f"quadratic.file: cannot read {file}: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"quadratic.file: {file} is not JSON: {error}") from None
        if not isinstance(keys, dict):
            raise DataError(f"quadratic.file: {file} must hold one JSON object")
        known = [field.name for field in fields(_Losses)]
        for key in keys:
            if key not in known and (near := get_close_matches(key, known, n=1, cutoff=0.75)):
                raise self.error(key, f"unknown key; did you mean `{near[0]}`?")
        try:
            self.losses = TypeAdapter(_Losses).validate_json(text)
        except ValidationError as error:
            last = error.errors()[-1]
            raise self.error(str(last["loc"][0]), last["msg"]) from None

    def error(self, key: str, problem: str) -> DataError:
        return DataError(f"quadratic.file: {self.file}: `{key}`: {problem}")

    def rows(self, key: str, d: int | None = None) -> Floats:
        """Return a row of `d` numbers per peer, (n, d); None takes the length of the first."""
        rows = getattr(self.losses, key)
        if len(rows) != self.peers:
            raise self.error(key, f"has {len(rows)} rows but peers = {self.peers}")
        d = len(rows[0]) if d is None else d
        if not d or any(len(row) != d for row in rows):
            raise self.error(key, f"must have {d or 'some'} numbers in each row")
        return np.array(rows, dtype=np.float64)

    def vector(self, key: str, size: int) -> Floats:
        values = getattr(self.losses, key)
        if len(values) != size:
            raise self.error(key, f"has {len(values)} numbers, expected {size}")
        return np.array(values, dtype=np.float64)
