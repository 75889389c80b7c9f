"""The run configuration: parsed once into frozen dataclasses and checked.

Defaults live in the dataclasses and nowhere else; `python -m app defaults` writes them to
`[tool.flwr.app.config]` of pyproject.toml, where Flower wants to see every key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tomli_w

from app import schema
from app.methods import METHODS
from app.schema import Scalar
from clients.model_options import MODEL_OPTIONS, MODELS
from clients.training import Augmentation, Optimizer, Training
from datasets.partition import Partition
from datasets.table import DATASETS
from strategies.errors import TopologyError
from strategies.relay import RelayStrategy
from strategies.topology import topology

Topology = Literal["full", "ring", "k-regular", "erdos-renyi", "file"]
_OF_ONE_RUN = ("name", "run-dir", "resume")


class ConfigError(Exception):
    """The user's configuration is wrong; the message is one clear line."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run. Build it with `from_flat`.

    Attributes
    ----------
    method : a name in `app.methods.METHODS`.
    peers : number of peers n.
    num_server_rounds : rounds.
    seed : of every random stream.
    dataset : a name in `datasets.table.DATASETS`.
    model : a name in `clients.model_options.MODELS`; "auto" follows the dataset.
    batch_size ... weight_decay : see `clients.training.Training`; local_steps 0 follows the dataset
        (10 for digits, else 1) unless there are local_epochs.
    topology : who may talk to whom at all.
    topology_degree, topology_probability, topology_file : of "k-regular", "erdos-renyi", "file".
    evaluate_every : rounds between two evaluations; the last round is always evaluated.
    round_seconds : how long a node may take for one round before the others go on without it.
    join_seconds : how long the relay waits for peers: for all of them to begin with, later for a
        quorum where fewer are left.
    quorum : peers that must take part for a round to begin; 0: all in the first one, then any.
    device : "auto" takes a GPU if there is one.
    dtype : of the parameters; the quadratic problem is always float64.
    mixed_precision : compute matrix products and convolutions in bfloat16; parameters, gradients
        and letters stay float32.
    channels_last : let images have their channels innermost where a model is called by itself.
    payload : precision in which models and answers travel; see `app.precision`.
    out, name : the run directory is `<out>/<name>`; an empty name is made up when the run starts.
    data_dir : where datasets lie or are downloaded to.
    sealing : whether letters are sealed end to end; "auto": in a deployment. A node that has keys
        takes part in no other run.
    run_dir : absolute run directory, set by the launcher.
    resume : continue the run in `run_dir`.
    partition : how the examples are split among peers.
    options, dataset_options, model_options : tables of the chosen method, dataset and model; None
        where a dataset or model has none.
    """

    method: str = "cobo"
    peers: int = 8
    num_server_rounds: int = 150
    seed: int = 0
    dataset: str = "digits"
    model: str = "auto"
    batch_size: int = Training.batch_size
    local_steps: int = 0
    local_epochs: int = Training.local_epochs
    augment: Augmentation = Training.augment
    optimizer: Optimizer = Training.optimizer
    learning_rate: float = Training.learning_rate
    momentum: float = Training.momentum
    weight_decay: float = Training.weight_decay
    topology: Topology = "full"
    topology_degree: int = 2
    topology_probability: float = 0.5
    topology_file: str = ""
    evaluate_every: int = 10
    round_seconds: float = 600.0
    join_seconds: float = 600.0
    quorum: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    mixed_precision: bool = False
    channels_last: bool = False
    payload: Literal["full", "float16", "bfloat16", "int8"] = "full"
    out: str = "runs"
    data_dir: str = "data"
    sealing: bool | Literal["auto"] = "auto"
    name: str = ""
    run_dir: str = ""
    resume: bool = False
    partition: Partition = field(default_factory=Partition)
    options: object = field(kw_only=True)
    dataset_options: object = field(kw_only=True)
    model_options: object = field(kw_only=True)

    @property
    def training(self) -> Training:
        """The fields that a peer's local training needs."""
        return Training(**{item.name: getattr(self, item.name) for item in fields(Training)})

    @property
    def validation(self) -> tuple[str, float]:
        """Key and value of the share of its examples that a peer sets aside to judge by."""
        if hasattr(self.dataset_options, "validation"):
            return f"{self.dataset}.validation", self.dataset_options.validation
        return "partition.validation", self.partition.validation

    @property
    def network(self) -> str:
        """The model by name, "auto" resolved; "auto" where the problem brings its parameters."""
        return _model(self.model, self.dataset) or "auto"

    @classmethod
    def from_flat(cls, flat: Mapping[str, Scalar]) -> Config:
        """The configuration of flat dotted kebab-case keys; keys not given take their defaults.

        Raises
        ------
        ConfigError
            An unknown key or name, a value of the wrong type, or an impossible combination.
        """
        given: dict[str, dict[str, Scalar]] = {table: {} for table in tables()}
        for key, value in flat.items():
            table, name, annotation = locate(key)
            try:
                given[table][name] = schema.convert(value, annotation)
            except ValueError as error:
                raise ConfigError(f"{key} = {_toml(value)}: {error}") from None
        made = {table: _make(table, given[table]) for table in given if table}
        top: dict[str, Any] = dict(given[""])
        choice = {key: top.get(key, getattr(cls, key)) for key in ("method", "dataset", "model")}
        for key, table_of_names in (("method", METHODS), ("dataset", DATASETS), ("model", MODELS)):
            if choice[key] not in table_of_names:
                raise ConfigError(
                    f'unknown {key} "{choice[key]}"{nearest(choice[key], table_of_names)}'
                )
        model = _model(choice["model"], choice["dataset"])
        if not top.get("local_steps") and not top.get("local_epochs"):
            top["local_steps"] = DATASETS[choice["dataset"]].local_steps
        config = cls(
            **top,
            partition=made["partition"] if DATASETS[choice["dataset"]].divided else Partition(),  # type: ignore[arg-type]
            options=made.get(choice["method"], METHODS[choice["method"]].options()),
            dataset_options=made.get(choice["dataset"]),
            model_options=made.get(model),
        )
        config._check()
        return config

    def flat(self) -> dict[str, Scalar]:
        """Flat dotted keys of everything this run uses: the inverse of `from_flat`."""
        flat = schema.values(self)
        for table, options in self._tables().items():
            flat |= {f"{table}.{key}": value for key, value in schema.values(options).items()}
        return flat

    def toml(self) -> str:
        """TOML text that starts the same run again, in a directory of its own."""
        top = {k: v for k, v in schema.values(self).items() if k not in _OF_ONE_RUN}
        used = {table: schema.values(options) for table, options in self._tables().items()}
        return tomli_w.dumps(top | {table: values for table, values in used.items() if values})

    def located(self, stamp: str) -> Config:
        """The same run with its directory; without a name it gets one that ends in `stamp`."""
        if self.run_dir:
            return self
        name = self.name or f"{self.method}-{self.dataset}-seed{self.seed}-{stamp}"
        return replace(self, name=name, run_dir=str(Path(self.out, name).absolute()))

    def absolute(self) -> Config:
        """The same run for a process with another working directory: paths are made absolute."""
        return self.from_flat(
            {
                key: str(Path(str(value)).absolute()) if value and _is_path(key) else value
                for key, value in self.flat().items()
            }
        )

    def graph(self) -> npt.NDArray[np.bool_]:
        """(n, n) who may talk to whom, symmetric.

        Raises
        ------
        ConfigError
            There is no such graph, or its file is missing or wrong.
        """
        try:
            return topology(
                self.topology,
                self.peers,
                self.seed,
                degree=self.topology_degree,
                probability=self.topology_probability,
                file=self.topology_file,
            )
        except TopologyError as error:
            raise ConfigError(str(error)) from None

    def strategy(self) -> RelayStrategy:
        """The method's strategy for this run.

        Raises
        ------
        ConfigError
            As `graph`.
        """
        return METHODS[self.method].strategy(
            peers=self.peers,
            rounds=self.num_server_rounds,
            seed=self.seed,
            topology=self.graph(),
            options=self.options,
            evaluate_every=self.evaluate_every,
        )

    def _tables(self) -> dict[str, object]:
        chosen = {
            "partition": self.partition if DATASETS[self.dataset].divided else None,
            self.method: self.options,
            self.dataset: self.dataset_options,
            _model(self.model, self.dataset): self.model_options,
        }
        return {name: options for name, options in chosen.items() if options is not None}

    def _check(self) -> None:
        """What one table alone cannot see."""
        try:
            _ = self.training
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for key in ("peers", "num-server-rounds", "evaluate-every"):
            if schema.values(self)[key] < 1:  # type: ignore[operator]
                raise ConfigError(f"{key} must be at least 1")
        if self.mixed_precision and self.dtype != "float32":
            raise ConfigError('mixed-precision = true goes with dtype = "float32"')
        if self.seed < 0:
            raise ConfigError("seed must not be negative")
        if self.round_seconds <= 0 or self.join_seconds < 0:
            raise ConfigError("round-seconds must be above 0 and join-seconds not below it")
        if not 0 <= self.quorum <= self.peers:
            raise ConfigError(f"quorum must be 0 to {self.peers}, the number of peers")
        if Path(self.name).name != self.name:
            raise ConfigError(f'name must be the name of one directory, not "{self.name}"')
        if self.topology == "file" and not self.topology_file:
            raise ConfigError('topology = "file" needs topology-file')
        own = getattr(self.options, "check", None)
        data = getattr(self.dataset_options, "check_peers", None)
        for table, check, what in ((self.method, own, self), (self.dataset, data, self.peers)):
            if check is not None:
                try:
                    check(what)
                except ValueError as error:
                    raise ConfigError(f"{table}: {error}") from None


@lru_cache
def tables() -> Mapping[str, type]:
    """Table name -> its dataclass; "" is the top level. Tables without options are left out."""
    options = {name: method.options for name, method in METHODS.items()}
    options |= {name: dataset.options for name, dataset in DATASETS.items() if dataset.options}
    named = {"": Config, "partition": Partition, **options, **MODEL_OPTIONS}
    return {name: table for name, table in named.items() if schema.keys(table)}


@lru_cache
def keys() -> Mapping[str, tuple[str, str, Any]]:
    """Dotted key -> (table, field name, annotation)."""
    return {
        f"{table}.{key}" if table else key: (table, *found)
        for table, options in tables().items()
        for key, found in schema.keys(options).items()
    }


def locate(key: str) -> tuple[str, str, Any]:
    """(table, field name, annotation) of a dotted key.

    Raises
    ------
    ConfigError
        The key is unknown; names the nearest valid one.
    """
    if key in keys():
        return keys()[key]
    raise ConfigError(f'unknown key "{key}"{nearest(key, keys())}')


def flatten(nested: Mapping[str, Any]) -> dict[str, Scalar]:
    """Flat dotted keys of a TOML document that is at most one table deep."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": scalar for inner, scalar in value.items()}
        else:
            flat[key] = value
    return flat


def nearest(word: str, words: Iterable[str]) -> str:
    """The end of an error line that names the word probably meant, or nothing."""
    words = list(words)
    same_ending = [known for known in words if known.rpartition(".")[2] == word.rpartition(".")[2]]
    close = difflib.get_close_matches(word, words, n=1) or same_ending[:1]
    return f', did you mean "{close[0]}"?' if close else ""


def _is_path(key: str) -> bool:
    """Whether a key holds a path: `out`, `data-dir`, `topology-file`, `quadratic.file`."""
    name = key.rpartition(".")[2]
    return name == "out" or name.rpartition("-")[2] in ("dir", "file")


def _model(model: str, dataset: str) -> str:
    return DATASETS[dataset].model if model == "auto" else model


def _make(table: str, values: Mapping[str, Scalar]) -> object:
    try:
        return tables()[table](**values)
    except ValueError as error:
        raise ConfigError(f"{table}: {error}") from None


def _toml(value: object) -> str:
    return tomli_w.dumps({"v": value})[4:].strip()
