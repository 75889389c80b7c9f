"""The one table of data sets, and `load_problem`.

A new data set is a function `read_it(data_dir) -> Source`, or `read_it(data_dir, options)` where
it has a table of options, and a row with `_divided(read_it)`; a synthetic problem is a function
with `load`'s signature and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.datasets import plugins
from coterie.datasets.arrays import ArraysOptions, load_arrays, load_own_arrays
from coterie.datasets.own.image_folder import ImageFolderOptions, read_image_folder
from coterie.datasets.own.institutions import deployed, simulated
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.own.text import TextOptions, read_text
from coterie.datasets.partition.options import Partition
from coterie.datasets.partition.split import split
from coterie.datasets.per_peer import problem_of_arrays, problem_of_node
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.published.cinic10 import read_cinic10
from coterie.datasets.published.femnist import FemnistOptions, read_femnist
from coterie.datasets.published.heart_disease import read_heart_disease
from coterie.datasets.published.images import (
    read_cifar10,
    read_cifar100,
    read_fashion_mnist,
    read_mnist,
)
from coterie.datasets.published.ixi import IxiOptions, read_ixi
from coterie.datasets.published.languages import LanguagesOptions, read_languages
from coterie.datasets.published.office_home import read_office_home
from coterie.datasets.published.packaged import read_breast_cancer, read_digits
from coterie.datasets.published.wiki40b import Wiki40bOptions, read_wiki40b
from coterie.datasets.source import Source
from coterie.datasets.synthetic.least_squares import LeastSquaresOptions, load_least_squares
from coterie.datasets.synthetic.noisy_quadratic import NoisyQuadraticOptions, load_noisy_quadratic
from coterie.datasets.synthetic.phantoms import read_phantoms
from coterie.datasets.synthetic.quadratic import QuadraticOptions, load_quadratic
from coterie.datasets.synthetic.sine import SineOptions, load_sine

Read = Callable[..., Source]


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
    deployed : (peer, peers, seed, data_dir, options) -> the Problem of a deployed node whose
    data-dir
        holds its own peer's data and nobody else's; None where every node has all of the data.
    """

    description: str
    needs: str
    model: str
    load: Callable[[Partition, int, int, Path, object], Problem]
    options: type | None = None
    local_steps: int = 1
    divided: bool = True
    deployed: Callable[[int, int, int, Path, object], Problem] | None = None


@lru_cache(maxsize=2)
def _read(read: Read, data_dir: Path, options: object) -> Source:
    return read(data_dir) if options is None else read(data_dir, options)


@lru_cache(maxsize=8)
def _split(
    read: Read, data_dir: Path, options: object, partition: Partition, peers: int, seed: int
) -> Problem:
    return split(_read(read, data_dir, options), partition, peers, seed)


def _divided(read: Read) -> Callable[[Partition, int, int, Path, object], Problem]:
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        return _split(read, data_dir, options, partition, peers, seed)

    return load


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        "1,797 real 8x8 digits, 10 classes",
        "nothing: inside scikit-learn",
        "mlp",
        _divided(read_digits),
        local_steps=10,
    ),
    "breast-cancer": Dataset(
        "569 biopsies, 30 features, malignant or benign",
        "nothing: inside scikit-learn",
        "linear",
        _divided(read_breast_cancer),
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
    "cinic10": Dataset(
        "270,000 colour 32x32 photographs, 10 classes",
        "CINIC-10's train, valid and test in data-dir/cinic10",
        "mlp",
        _divided(read_cinic10),
    ),
    "femnist": Dataset(
        "800,000 grey 28x28 characters by 3,550 writers, 62 classes",
        "LEAF's train/*.json and test/*.json in data-dir/femnist",
        "mlp",
        _divided(read_femnist),
        FemnistOptions,
    ),
    "office-home": Dataset(
        "15,588 images of 65 things in 4 domains, as 512 features each",
        "the folders of the 4 domains in data-dir/office-home, resnet18-f37072fd.pth in data-dir",
        "mlp",
        _divided(read_office_home),
    ),
    "heart-disease": Dataset(
        "740 patients of 4 hospitals, 13 features, healthy or not",
        "UCI's four processed.*.data in data-dir/heart-disease",
        "linear",
        _divided(read_heart_disease),
    ),
    "ixi": Dataset(
        "566 brain scans of 3 hospitals, 48x60x48, and which voxels are brain",
        "IXI Tiny's *_image.nii.gz and *_label.nii.gz in data-dir/ixi",
        "unet3d",
        _divided(read_ixi),
        IxiOptions,
    ),
    "phantoms": Dataset(
        "91 volumes of made-up heads from 3 scanners, 8x8x8, and which voxels are brain",
        "nothing: synthetic",
        "unet3d",
        _divided(read_phantoms),
    ),
    "languages": Dataset(
        "one manual in Catalan, Spanish, German, Dutch and others, as bytes",
        "`apt-get install installation-guide-amd64`, or its texts in data-dir/languages",
        "transformer",
        _divided(read_languages),
        LanguagesOptions,
    ),
    "wiki40b": Dataset(
        "Wikipedia in 40 languages, as GPT-2's tokens or as bytes",
        "<language>/train.txt and test.txt in data-dir/wiki40b, vocab.json, merges.txt in .../gpt2",
        "gpt2",
        _divided(read_wiki40b),
        Wiki40bOptions,
    ),
    "image-folder": Dataset(
        "each peer's own images, a folder for each class",
        "data-dir: a folder for each peer; on a deployed node its own",
        "mlp",
        simulated(read_image_folder),
        ImageFolderOptions,
        divided=False,
        deployed=deployed(read_image_folder),
    ),
    "table": Dataset(
        "each peer's own table, CSV or Parquet",
        "data-dir: a folder for each peer; on a deployed node its own",
        "mlp",
        simulated(read_table),
        TableOptions,
        divided=False,
        deployed=deployed(read_table),
    ),
    "text": Dataset(
        "each peer's own texts, .txt or .jsonl, as the tokens of a tokenizer.json",
        "data-dir: a folder for each peer and tokenizer.json; on a deployed node its own",
        "transformer",
        simulated(read_text),
        TextOptions,
        divided=False,
        deployed=deployed(read_text),
    ),
    "arrays": Dataset(
        "each peer's own arrays, .npz",
        "data-dir: a file for each peer with x and y; on a deployed node its own",
        "mlp",
        load_arrays,
        ArraysOptions,
        divided=False,
        deployed=load_own_arrays,
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


def dataset_of(name: str) -> Dataset:
    """The data set of that name: built in, or a plugin's.

    Raises
    ------
    DataError
        There is none.
    """
    if name in DATASETS:
        return DATASETS[name]
    if not plugins.is_named("dataset", name):
        nearest = get_close_matches(name, DATASETS, n=1, cutoff=0)[0]
        raise DataError(f"dataset = {name!r} is unknown; nearest: {nearest!r}")
    return _foreign(name, plugins.load("dataset", name))


@lru_cache
def _foreign(name: str, read: Callable[..., Any]) -> Dataset:
    """A plugin's data set: a function that may have parameters data_dir, peers, seed and options.

    It gives a `Source`, or a list with the arrays of each peer (see `coterie.datasets.per_peer`). Those
    that a deployed node reads are its own peer's, and protected like those of institutions.
    """

    @lru_cache(maxsize=2)
    def found(peers: int, seed: int, data_dir: Path, options: object) -> Any:
        data = plugins.call(read, name, data_dir=data_dir, peers=peers, seed=seed, options=options)
        if not isinstance(data, Source | list | tuple):
            raise plugins.PluginError(
                f'dataset = "{name}" gives a {type(data).__name__}: it must give a Source, or a '
                "list with a dict of arrays for each peer"
            )
        return data

    @lru_cache(maxsize=2)
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        data = found(peers, seed, data_dir, options)
        if isinstance(data, Source):
            return split(data, partition, peers, seed)
        return problem_of_arrays(name, data, partition, peers, seed)

    def deployed(peer: int, peers: int, seed: int, data_dir: Path, options: object) -> Problem:
        data = found(peers, seed, data_dir, options)
        if isinstance(data, Source):
            raise plugins.PluginError(f"{name} gives a Source: a deployed node needs a list")
        return problem_of_node(name, data, peer, peers, seed)

    options = plugins.options_of(read, name)
    return Dataset(f"of {name}", "what it reads", "mlp", load, options, deployed=deployed)


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
    return dataset_of(dataset).load(partition, peers, seed, data_dir, options)
