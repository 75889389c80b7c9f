"""Every key there is: the top level, the option tables, and the way from a name to its field.

Defaults live in the dataclasses and nowhere else; `coterie defaults` writes them to
`[tool.flwr.app.config]` of pyproject.toml, where Flower wants to see every key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from coterie.app.config import schema
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.clients.attack import Attack
from coterie.clients.defence import Defence
from coterie.clients.models.options import MODEL_OPTIONS, Adaptation
from coterie.clients.privacy import Privacy
from coterie.clients.training import Augmentation, Optimizer, Training
from coterie.datasets.partition.options import Partition
from coterie.datasets.table import DATASETS
from coterie.strategies import clock, schedule
from coterie.strategies.names import RULE, is_name

WORLD: Mapping[str, type] = {"attack": Attack, "defence": Defence, "privacy": Privacy}
"""Tables of the world around a method, each off by default; config.toml has them where they are on.
"""
Topology = Literal[
    "full",
    "ring",
    "torus",
    "k-regular",
    "erdos-renyi",
    "small-world",
    "barabasi-albert",
    "hypercube",
    "one-peer-exponential",
    "base",
    "epidemic",
    "file",
]


class ConfigError(Exception):
    """The user's configuration is wrong; the message is one clear line."""


@dataclass(frozen=True)
class TopLevel:
    """The keys that stand in no table.

    Attributes
    ----------
    method : name of the method, see `coterie list methods`.
    peers : number of peers n.
    num_server_rounds : number of rounds.
    seed : seed of every random stream.
    dataset : name of the data set, see `coterie list datasets`.
    model : name of the model, see `coterie list models`; "auto" follows the data set.
    local_steps : minibatches a round; 0 follows the data set (10 for digits, else 1) unless there
        are local_epochs.
    topology : which peers may talk to each other at all; "one-peer-exponential", "base" and
        "epidemic" change from round to round, the first and last go with methods that only hear.
    topology_degree : neighbours of each peer in a "k-regular" topology, and before rewiring in a
        "small-world"; edges that a new peer brings in "barabasi-albert"; peers heard in "epidemic";
        most neighbours in a round of the "base" graph, k of base-(k+1).
    topology_probability : probability of an edge in an "erdos-renyi" topology; of rewiring one in a
        "small-world".
    topology_file : JSON list of the edges, [[0, 1], [1, 2]], of a "file" topology, or a CSV of the
        edges of each round with the columns round, sender, recipient.
    evaluate_every : rounds between two evaluations; the last round is always evaluated.
    round_seconds : how long a node may take for one round before the others go on without it.
    join_seconds : how long the relay waits for peers: for all of them to begin with, later for a
        quorum where fewer are left.
    hold_out : share of the peers that come only for the last fifth of the rounds, to measure how
        they are received; for runs without Flower (`coterie compare --hold-out`).
    quorum : peers that must take part for a round to begin; 0: all in the first one, then any.
    device : "auto" takes a GPU if there is one.
    dtype : data type of the parameters; the quadratic problem is always float64.
    mixed_precision : compute matrix products and convolutions in bfloat16; parameters, gradients
        and letters stay float32.
    tf32 : round what matrix products and convolutions of float32 take in to 10 bits behind the
        point, as NVIDIA's tensor cores do; nothing on a CPU.
    channels_last : let images have their channels innermost where a model is called by itself.
    payload : precision in which models and answers travel; see `coterie.app.wire.quantise`.
    out : directory of run directories; a run's is `<out>/<name>`.
    name : name of the run directory, at most 64 letters, digits, ".", "-" and "_"; empty: made from
        the time when the run starts.
    data_dir : directory where data sets lie or are downloaded to.
    track : where the numbers of every round are logged beside the run directory: "tensorboard",
        "mlflow", "wandb", or several with commas; each must be installed. Not for a bare flwr run.
    sealing : whether letters are sealed end to end; "auto": in a deployment. A node that has keys
        takes part in no other run.
    trust : trust file of a deployment's relay: a node has to show, with the key of its peer there,
        that the peer is its own. Empty: a peer belongs to the node that brings it first.
    preflight : ask a deployment's nodes whether they are ready, and train nothing; set by
        `coterie preflight`.
    run_dir : absolute run directory, set by the launcher.
    resume : continue the run in `run_dir`.
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
    learning_rate_decay: float = Training.learning_rate_decay
    learning_rate_decay_every: int = Training.learning_rate_decay_every
    momentum: float = Training.momentum
    weight_decay: float = Training.weight_decay
    topology: Topology = "full"
    topology_degree: int = 2
    topology_probability: float = 0.5
    topology_file: Annotated[str, Path] = ""
    evaluate_every: int = 10
    round_seconds: float = 600.0
    join_seconds: float = 600.0
    hold_out: float = 0.0
    quorum: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    mixed_precision: bool = False
    tf32: bool = False
    channels_last: bool = False
    payload: Literal["full", "float16", "bfloat16", "int8"] = "full"
    out: Annotated[str, Path] = "runs"
    data_dir: Annotated[str, Path] = "data"
    track: str = ""
    sealing: bool | Literal["auto"] = "auto"
    name: str = ""
    trust: Annotated[str, Path] = ""
    preflight: bool = False
    run_dir: Annotated[str, Path] = ""
    resume: bool = False

    def __post_init__(self) -> None:
        _ = self.training
        for key in ("peers", "num-server-rounds", "evaluate-every"):
            if getattr(self, key.replace("-", "_")) < 1:
                raise ValueError(f"{key} must be at least 1")
        if self.mixed_precision and self.dtype != "float32":
            raise ValueError('mixed-precision = true goes with dtype = "float32"')
        if self.seed < 0:
            raise ValueError("seed must not be negative")
        if self.round_seconds <= 0 or self.join_seconds < 0:
            raise ValueError("round-seconds must be above 0 and join-seconds not below it")
        if not 0 <= self.hold_out < 1:
            raise ValueError("hold-out must be at least 0 and below 1")
        if self.hold_out and min(self.peers, self.num_server_rounds) < 2:
            raise ValueError("hold-out wants at least two peers and two rounds")
        if not 0 <= self.quorum <= self.peers:
            raise ValueError(f"quorum must be 0 to {self.peers}, the number of peers")
        if not 0 < self.topology_probability <= 1:
            raise ValueError("topology-probability must be above 0 and at most 1")
        if self.name and not is_name(self.name):
            raise ValueError(f"name must be the name of one directory: {RULE}")
        if self.topology == "file" and not self.topology_file:
            raise ValueError('topology = "file" needs topology-file')

    @property
    def training(self) -> Training:
        """The fields that a peer's local training needs."""
        return Training(**{item.name: getattr(self, item.name) for item in fields(Training)})


@lru_cache
def tables() -> Mapping[str, type]:
    """Table name -> its dataclass; "" is the top level. Tables without options are left out."""
    options = {name: method.options for name, method in METHODS.items()}
    options |= {name: dataset.options for name, dataset in DATASETS.items() if dataset.options}
    run = {"": TopLevel, "partition": Partition, "schedule": schedule.Options}
    run |= {"clock": clock.Options, **WORLD, "model": Adaptation}
    named = {**run, **options, **MODEL_OPTIONS}
    return {name: table for name, table in named.items() if schema.keys(table)}


@lru_cache
def keys() -> Mapping[str, tuple[str, str, Any]]:
    """Dotted key -> (table, field name, annotation)."""
    return {
        f"{table}.{key}" if table else key: (table, *found)
        for table, options in tables().items()
        for key, found in schema.keys(options).items()
    }


def locate(key: str, more: Mapping[str, type] | None = None) -> tuple[str, str, Any]:
    """(table, field name, annotation) of a dotted key.

    Parameters
    ----------
    more : tables of plugins' options.

    Raises
    ------
    ConfigError
        The key is unknown; names the nearest valid one.
    """
    if key in keys():
        return keys()[key]
    theirs = {
        f"{table}.{name}": (table, *found)
        for table, options in (more or {}).items()
        for name, found in schema.keys(options).items()
    }
    if key in theirs:
        return theirs[key]
    raise ConfigError(f'unknown key "{key}"{nearest(key, [*theirs, *keys()])}')


@lru_cache
def paths() -> frozenset[str]:
    """The keys that name a file or a directory."""
    return frozenset(key for key, found in keys().items() if schema.is_path(found[-1]))


def flatten(nested: Mapping[str, Any]) -> dict[str, Scalar]:
    """Flat dotted keys of a TOML document that is at most one table deep."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            if key == "model" and "name" in value:  # a table cannot stand beside a name
                value = {**value}
                flat["model"] = value.pop("name")
            flat |= {f"{key}.{inner}": scalar for inner, scalar in value.items()}
        else:
            flat[key] = value
    return flat


def nearest(word: str, words: Iterable[str]) -> str:
    """The end of an error line that names the word probably meant, or nothing.

    That is a name with all of the word's parts ("rounds" for "num-server-rounds"), of the top level
    first, else the one most alike, else one that ends in the same way.
    """
    words = list(words)
    parts = set(word.split("-"))
    whole = [known for known in words if parts <= set(known.rpartition(".")[2].split("-"))]
    whole.sort(key=lambda known: "." in known)
    same_ending = [known for known in words if known.rpartition(".")[2] == word.rpartition(".")[2]]
    likely = whole or difflib.get_close_matches(word, words, n=1) or same_ending
    return f', did you mean "{likely[0]}"?' if likely else ""
