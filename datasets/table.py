"""The one table of data sets, and `load_problem`.

A new data set is a function `read_it(data_dir) -> Source` and a row with `_divided(read_it)`;
a synthetic problem is a function with `load`'s signature and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from datasets.digits import read_digits
from datasets.images import read_cifar10, read_cifar100, read_fashion_mnist, read_mnist
from datasets.least_squares import LeastSquaresOptions, load_least_squares
from datasets.noisy_quadratic import NoisyQuadraticOptions, load_noisy_quadratic
from datasets.partition import Partition
from datasets.problem import DataError, Problem
from datasets.quadratic import QuadraticOptions, load_quadratic
from datasets.sine import SineOptions, load_sine
from datasets.source import Source
from datasets.split import split

Read = Callable[[Path], Source]


@dataclass(frozen=True)
class Dataset:
    """A row of `DATASETS`.

    Attributes
    ----------
    description, needs : for people: what it is, and what must be there to load it.
    model : the model that suits it; empty where the problem brings its own parameters.
    load : (partition, peers, seed, data_dir, options) -> Problem.
    options : dataclass of the table [<name>]; None where there is none.
    local_steps : steps a round that `local-steps = 0` stands for.
    divided : whether the [partition] table says who holds what.
    """

    description: str
    needs: str
    model: str
    load: Callable[[Partition, int, int, Path, object], Problem]
    options: type | None = None
    local_steps: int = 1
    divided: bool = True


@lru_cache(maxsize=2)
def _read(read: Read, data_dir: Path) -> Source:
    return read(data_dir)


@lru_cache(maxsize=8)
def _split(read: Read, data_dir: Path, partition: Partition, peers: int, seed: int) -> Problem:
    return split(_read(read, data_dir), partition, peers, seed)


def _divided(read: Read) -> Callable[[Partition, int, int, Path, object], Problem]:
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        return _split(read, data_dir, partition, peers, seed)

    return load


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        "1,797 real 8x8 digits, 10 classes",
        "nothing: inside scikit-learn",
        "mlp",
        _divided(read_digits),
        local_steps=10,
    ),
    "fashion-mnist": Dataset(
        "70,000 grey 28x28 images of clothing, 10 classes",
        "`apt-get install dataset-fashion-mnist`, files in data-dir, or a network",
        "mlp",
        _divided(read_fashion_mnist),
    ),
    "mnist": Dataset(
        "70,000 grey 28x28 handwritten digits, 10 classes",
        "files in data-dir, or a network",
        "mlp",
        _divided(read_mnist),
    ),
    "cifar10": Dataset(
        "60,000 colour 32x32 photographs, 10 classes",
        "files in data-dir, or a network",
        "mlp",
        _divided(read_cifar10),
    ),
    "cifar100": Dataset(
        "60,000 colour 32x32 photographs, 100 classes",
        "files in data-dir, or a network",
        "mlp",
        _divided(read_cifar100),
    ),
    "quadratic": Dataset(
        "one quadratic loss per peer, for exact checks",
        "quadratic.file: a JSON file",
        "",
        load_quadratic,
        QuadraticOptions,
        divided=False,
    ),
    "noisy-quadratic": Dataset(
        "users and helpers with one quadratic loss each, many trials at once",
        "nothing: synthetic",
        "",
        lru_cache(maxsize=8)(load_noisy_quadratic),
        NoisyQuadraticOptions,
        divided=False,
    ),
    "least-squares": Dataset(
        "noise-free linear regression around a few centres",
        "nothing: synthetic",
        "linear",
        lru_cache(maxsize=8)(load_least_squares),
        LeastSquaresOptions,
        divided=False,
    ),
    "sine": Dataset(
        "noisy points on successive intervals of a sine curve",
        "nothing: synthetic",
        "linear",
        lru_cache(maxsize=8)(load_sine),
        SineOptions,
        divided=False,
    ),
}
"""Name -> data set."""


def load_problem(
    dataset: str, partition: Partition, peers: int, seed: int, data_dir: Path, options: object
) -> Problem:
    """The problem that `peers` peers learn from: a pure function of its arguments and the files.

    Cached per process, so that asking again is free; all arrays are read-only.

    Parameters
    ----------
    options : instance of the data set's options dataclass; None where it has none.

    Raises
    ------
    DataError
        Unknown data set, missing or broken files, or an impossible partition.
    """
    if dataset not in DATASETS:
        nearest = get_close_matches(dataset, DATASETS, n=1, cutoff=0)[0]
        raise DataError(f"dataset = {dataset!r} is unknown; nearest: {nearest!r}")
    return DATASETS[dataset].load(partition, peers, seed, data_dir, options)
