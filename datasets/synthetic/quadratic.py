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

Noisy quadratics: users and their helpers (papers: wga-bias-correction, section 6).

A group is one user with loss a0/2 (x - c0)^2 and N helpers with a1/2 (x - c1)^2 each; every
gradient has noise N(0, sigma^2). Every coordinate of x is an independent trial: losses are sums
over coordinates, noise and starts N(0, 1) are drawn for each, and methods that weight whole
gradients mix all coordinates alike. So one run is `trials` runs of the paper's 1-D problem, and
a user's test loss is their mean, the quantity in the paper's figures.

A list in `helpers`, `helper-curvature`, `helper-centre` or `user-centre` makes one group per entry.
Peers are numbered by group, the user first; groups are true clusters. Helpers have no test data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
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
    # Pool row i is peer i's [curvature, centre]; row n + i the same with the validation centre.
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


@dataclass(frozen=True)
class NoisyQuadraticOptions:
    """Options of the noisy quadratic problem; the defaults are the paper's figure 2."""

    helpers: int | str = option(
        10, 'Number of helpers N, or a list like "1,10,50" with an entry per group.'
    )
    helper_curvature: float | str = option(2.0, "Curvature a1 of the helpers' loss, or a list.")
    helper_centre: float | str = option(5.0, "Minimum c1 of the helpers' loss, or a list.")
    user_curvature: float = option(1.0, "Curvature a0 of the user's loss.", low=0)
    user_centre: float | str = option(1.0, "Minimum c0 of the user's loss, or a list.")
    noise: float = option(10.0, "Standard deviation sigma of the gradient noise.", low=0)
    trials: int = option(100, "Number of independent copies of the 1-D problem.", low=1)

    def __post_init__(self) -> None:
        helpers_g, curvature_g, *_ = self.groups()
        if np.any((helpers_g < 1) | (helpers_g % 1 != 0)):
            raise ValueError("helpers must be integers of at least 1")
        if min(curvature_g) < 0:
            raise ValueError("helper-curvature must be at least 0")

    def groups(self) -> tuple[Floats, ...]:
        """Return N, a1, c1 and c0 of each group, (G,) each."""
        lists = [
            _numbers("helpers", self.helpers),
            _numbers("helper-curvature", self.helper_curvature),
            _numbers("helper-centre", self.helper_centre),
            _numbers("user-centre", self.user_centre),
        ]
        if len({len(values) for values in lists} - {1}) > 1:
            raise ValueError(
                "lists in helpers, helper-curvature, helper-centre and user-centre must have the "
                "same length"
            )
        return tuple(np.broadcast_arrays(*lists))

    def check_peers(self, peers: int) -> None:
        """Check that the number of peers is that of all users and helpers."""
        helpers_g = self.groups()[0]
        if peers != helpers_g.sum() + len(helpers_g):
            raise ValueError(
                f"{len(helpers_g)} user(s) with {helpers_g.sum():g} helpers make "
                f"{helpers_g.sum() + len(helpers_g):g} peers, but peers = {peers}"
            )

    def numbers(self, peers: int) -> int:
        """Numbers in the data of all peers: curvature and centre of two losses, and a start."""
        return 5 * peers * self.trials


def load_noisy_quadratic(peers: int, seed: int, options: NoisyQuadraticOptions) -> Problem:
    """Make the problem of `options`; the seed draws starts."""
    # Pool row n + i has the curvature divided by the trials, as the test loss is their mean.
    helpers_g, a1_g, c1_g, c0_g = options.groups()
    sizes = helpers_g.astype(np.int64) + 1
    group, rows = np.repeat(np.arange(len(sizes)), sizes), np.arange(peers)
    user = rows == (np.cumsum(sizes) - sizes)[group]
    curvature = np.where(user, options.user_curvature, a1_g[group])
    centre = np.where(user, c0_g[group], c1_g[group])
    pool = np.tile(np.stack([curvature, centre], axis=1)[:, :, None], options.trials)
    return Problem(
        name="noisy-quadratic",
        task="quadratic",
        inputs=np.concatenate([pool, pool / [[options.trials], [1]]]),
        train=_split(rows, np.ones_like(user)),
        validation=_split(rows, np.zeros_like(user)),
        test=_split(rows + peers, user),
        outputs=options.trials,
        mean=np.zeros((1, 1)),
        std=np.ones((1, 1)),
        samples=np.ones(peers, dtype=np.int64),
        clusters=group if len(sizes) > 1 else None,
        start=np.random.default_rng([seed, 0]).standard_normal((peers, options.trials)),
        noise=np.full(peers, options.noise),
    )


def _split(rows: Ints, holds: npt.NDArray[np.bool_]) -> Split:
    """Give one example to each peer of a mask."""
    shares = [rows[i : i + holds[i]] for i in range(len(rows))]
    return Split(tuple(shares), tuple(np.zeros((len(share), 1)) for share in shares))


def _numbers(key: str, value: float | str) -> Floats:
    try:
        numbers = np.array([float(part) for part in str(value).split(",")])
    except ValueError:
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise ValueError(f'{key} must be a number or a list like "1,10,50", not "{value}"')
    return numbers
