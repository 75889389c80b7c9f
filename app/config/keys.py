"""Configuration keys: the top level, the option tables, and the mapping from keys to fields.

Defaults are defined in the dataclasses only. `coterie defaults` writes them to
`[tool.flwr.app.config]` of pyproject.toml, where Flower needs all keys.
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
from coterie.clients.engine_options import EngineOptions
from coterie.clients.letter_options import LetterOptions
from coterie.clients.models.options import MODELS, Adaptation, Model
from coterie.clients.privacy import Privacy
from coterie.clients.training import (
    Augmentation,
    ClassWeights,
    Mixing,
    Optimizer,
    RateSchedule,
    Training,
)
from coterie.datasets.partition.options import Partition
from coterie.datasets.table import DATASETS, Dataset
from coterie.errors import Error
from coterie.ranges import Range
from coterie.strategies import clock, schedule
from coterie.strategies.names import RULE, is_name

WORLD: Mapping[str, type] = {
    "attack": Attack, "defence": Defence, "privacy": Privacy, "engine": EngineOptions,
    "letters": LetterOptions,
}  # fmt: skip
"""Tables of features that are off by default; config.toml contains them if they are on."""


class ConfigError(Error):
    """Error in the user's configuration; the message is one line."""


@dataclass(frozen=True)
class TopLevel:
    """Top-level keys of a run.

    Attributes
    ----------
    method : str
        Name of the method, see `coterie list methods`, or of a recipe.
    recipe : str
        Name of the recipe that the keys follow, see `coterie list recipes`. Set method to that name
        instead.
    peers : int
        Number of peers n.
    num_server_rounds : int
        Number of rounds.
    seed : int
        Seed of all random streams.
    split_seed : int or {"seed"}
        Seed of the division of the data among the peers; "seed": that of all random streams. With a
        number, runs with different seeds train on the same division.
    dataset : str
        Name of the data set, see `coterie list datasets`.
    model : str
        Name of the model, see `coterie list models`; "auto" depends on the data set.
    local_steps : int
        Minibatches per round; 0 depends on the data set (10 for digits, else 1), unless
        local_epochs is set.
    topology : str
        Allowed edges between peers, see `coterie list topologies`, or the name of a plugin.
    topology_degree : int
        Number of neighbours in a "k-regular" topology, and before rewiring in a "small-world"
        topology; edges per new peer in "barabasi-albert"; models that a
        peer receives per round in "epidemic" and sends in "push"; maximum number of neighbours per
        round in "base", k of base-(k+1).
    topology_probability : float
        Probability of an edge in "erdos-renyi"; of rewiring an edge in "small-world".
    topology_file : str
        Edges of a "file" topology: a JSON list, [[0, 1], [1, 2]], or a CSV of the edges of each
        round with the columns round, sender, recipient.
    mixing : {"samples", "uniform", "metropolis"}
        Weights of FedAvg's average, for FedAvg and the methods that share it: proportional to the
        numbers of training examples; equal for all models that a peer received and its own; or
        1 / (1 + max(deg(i), deg(j))) for neighbour j of peer i, with the rest for its own
        (Metropolis), which preserves the mean over all peers. Other methods ignore it.
    start_from : str
        Name of an earlier run in `out`, or its absolute path: each peer starts from its own final
        model of that run, instead of an initialised one. For simulations; network and peers must be
        the same. Empty: no such run.
    evaluate_every : int
        Rounds between two evaluations; the last round is always evaluated.
    round_seconds : float
        Maximum seconds of a node for a round; then the others continue without it.
    join_seconds : float
        Maximum seconds that the relay waits for peers: at the start for all of them, later for a
        quorum.
    hold_out : float
        Fraction of peers that join only for the last fifth of the rounds; for runs without Flower
        (`coterie compare --hold-out`).
    withhold : str
        Peers whose letters reach no other peer, as "0,3"; they still receive. A question of such a
        peer is answered, but neither its model nor its answers enter another model
        (`coterie worth`).
    quorum : int
        Number of peers required to start a round; 0: all in the first round, then any number.
    keep_models : {"last", "best"}
        Models that a run leaves: those of the last round, or each peer's of the evaluated round
        with its smallest validation loss, with the metrics of that round in its card.
    patience : int
        Number of evaluated rounds without a smaller mean validation loss of the peers after which
        the run ends; 0: never. Requires keep-models = "best".
    device : {"auto", "cpu", "cuda"}
        Device of the computation; "auto" uses a GPU if there is one.
    dtype : {"float32", "float64"}
        Data type of the parameters; the quadratic problem always uses float64.
    mixed_precision : bool
        Compute matrix products and convolutions in bfloat16; parameters, gradients and letters stay
        float32.
    tf32 : bool
        Round the inputs of float32 matrix products and convolutions to TF32 (10 mantissa bits) on
        NVIDIA's tensor cores; no effect on a CPU.
    channels_last : bool
        Use the channels-last memory format for images if a model is computed on its own.
    payload : {"full", "float16", "bfloat16", "int8", "int4"}
        Precision of models and answers in letters, see `coterie.app.wire.quantise`.
    out : str
        Directory of run directories; a run writes to `<out>/<name>`.
    name : str
        Name of the run directory, at most 64 letters, digits, ".", "-" and "_"; empty: derived from
        the start time.
    data_dir : str
        Directory of data sets and downloads.
    track : str
        Experiment trackers that log the metrics of every round, separated by commas: "tensorboard",
        "mlflow", "wandb"; they must be installed. Not for a plain `flwr run`.
    sealing : bool or {"auto"}
        Encrypt letters end to end; "auto": in a deployment. A node with keys accepts only encrypted
        runs.
    trust : str
        Trust file of a deployment's relay: each node must prove with a signature that it hosts its
        peer. Empty: a peer belongs to the first node that claims it.
    preflight : bool
        Check whether a deployment's nodes are ready, without training; set by
        `coterie preflight`.
    run_dir : str
        Absolute run directory, set by the launcher.
    resume : bool
        Continue the run in `run_dir`.
    """

    method: str = "cobo"
    recipe: str = ""
    peers: Annotated[int, Range(1)] = 8
    num_server_rounds: Annotated[int, Range(1)] = Training.num_server_rounds
    seed: Annotated[int, Range(0)] = 0
    split_seed: Annotated[int, Range(0)] | Literal["seed"] = "seed"
    dataset: str = "digits"
    model: str = "auto"
    batch_size: Annotated[int, Range(1)] = Training.batch_size
    local_steps: Annotated[int, Range(0)] = 0
    local_epochs: Annotated[int, Range(0)] = Training.local_epochs
    augment: Augmentation = Training.augment
    optimizer: Optimizer = Training.optimizer
    learning_rate: Annotated[float, Range(above=0)] = Training.learning_rate
    learning_rate_schedule: RateSchedule = Training.learning_rate_schedule
    learning_rate_decay: Annotated[float, Range(above=0, high=1)] = Training.learning_rate_decay
    learning_rate_decay_every: Annotated[int, Range(1)] = Training.learning_rate_decay_every
    warm_up_rounds: Annotated[int, Range(0)] = Training.warm_up_rounds
    momentum: Annotated[float, Range(0, below=1)] = Training.momentum
    weight_decay: Annotated[float, Range(0)] = Training.weight_decay
    gradient_clip: Annotated[float, Range(0)] = Training.gradient_clip
    reset_optimizer: bool = Training.reset_optimizer
    sam_radius: Annotated[float, Range(0)] = Training.sam_radius
    class_weights: ClassWeights = Training.class_weights
    topology: str = "full"
    topology_degree: Annotated[int, Range(0)] = 2
    topology_probability: Annotated[float, Range(above=0, high=1)] = 0.5
    topology_file: Annotated[str, Path] = ""
    mixing: Mixing = "samples"
    start_from: str = ""
    evaluate_every: Annotated[int, Range(1)] = 10
    round_seconds: Annotated[float, Range(above=0)] = 600.0
    join_seconds: Annotated[float, Range(0)] = 600.0
    hold_out: Annotated[float, Range(0, below=1)] = 0.0
    withhold: str = ""
    quorum: Annotated[int, Range(0)] = 0
    keep_models: Literal["last", "best"] = "last"
    patience: Annotated[int, Range(0)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    mixed_precision: bool = False
    tf32: bool = False
    channels_last: bool = False
    payload: Literal["full", "float16", "bfloat16", "int8", "int4"] = "full"
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
        if self.mixed_precision and self.dtype != "float32":
            raise ValueError('mixed-precision = true requires dtype = "float32"')
        if self.hold_out and min(self.peers, self.num_server_rounds) < 2:
            raise ValueError("hold-out requires at least two peers and two rounds")
        if self.withhold and not all(word.isdecimal() for word in self.withhold.split(",")):
            raise ValueError(f'withhold must be peers like "0,3", not "{self.withhold}"')
        if max(self.withheld, default=0) >= self.peers:
            raise ValueError(f'withhold = "{self.withhold}", but peers are 0 to {self.peers - 1}')
        if self.patience and self.keep_models != "best":
            raise ValueError('patience requires keep-models = "best"')
        if self.quorum > self.peers:
            raise ValueError(f"quorum = {self.quorum} must be at most peers = {self.peers}")
        if self.name and not is_name(self.name):
            raise ValueError(f"name must be the name of one directory: {RULE}")
        if self.topology == "file" and not self.topology_file:
            raise ValueError('topology = "file" needs topology-file')

    @property
    def label(self) -> str:
        """Name of the recipe or else of the method."""
        return self.recipe or self.method

    @property
    def withheld(self) -> tuple[int, ...]:
        """Peers of the key `withhold`."""
        return tuple(map(int, self.withhold.split(","))) if self.withhold else ()

    @property
    def division(self) -> int:
        """Seed of the division of the data."""
        return self.seed if self.split_seed == "seed" else self.split_seed

    @property
    def training(self) -> Training:
        """Options of local training."""
        return Training(**{item.name: getattr(self, item.name) for item in fields(Training)})


@lru_cache
def tables() -> Mapping[str, type]:
    """Return table name -> dataclass; "" is the top level. Tables without options are omitted."""
    rows: dict[str, Dataset | Model] = {**DATASETS, **MODELS}
    options = {**METHODS, **{name: row.options for name, row in rows.items() if row.options}}
    run = {"": TopLevel, "partition": Partition, "schedule": schedule.Options}
    run |= {"clock": clock.Options, **WORLD, "model": Adaptation}
    named = {**run, **options}
    return {name: table for name, table in named.items() if schema.keys(table)}


@lru_cache
def ambiguous() -> tuple[str, ...]:
    """Return the tables whose name is also a key: in one TOML file, it cannot be both.

    Their keys are written as "model.personal" at the top level.
    """
    return tuple(table for table in tables() if table in schema.keys(TopLevel))


@lru_cache
def keys() -> Mapping[str, tuple[str, str, Any]]:
    """Return dotted key -> (table, field name, annotation)."""
    return {
        f"{table}.{key}" if table else key: (table, *entry)
        for table, options in tables().items()
        for key, entry in schema.keys(options).items()
    }


def locate(key: str, more: Mapping[str, type] | None = None) -> tuple[str, str, Any]:
    """Return (table, field name, annotation) of a dotted key.

    Parameters
    ----------
    key : str
        Dotted key.
    more : Mapping of str to type or None
        Tables of plugins' options.

    Raises
    ------
    ConfigError
        If the key is unknown; the message names the most similar key.
    """
    if key in keys():
        return keys()[key]
    theirs = {
        f"{table}.{name}": (table, *entry)
        for table, options in (more or {}).items()
        for name, entry in schema.keys(options).items()
    }
    if key in theirs:
        return theirs[key]
    raise ConfigError(f'unknown key "{key}"{nearest(key, [*theirs, *keys()])}')


@lru_cache
def paths() -> frozenset[str]:
    """Return the keys that name a file or a directory."""
    return frozenset(key for key, entry in keys().items() if schema.is_path(entry[-1]))


def flatten(nested: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the flat dotted keys of a TOML document with at most one level of tables."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            if key == "model" and "name" in value:  # the name of the model: not a table
                value = {**value}
                flat["model"] = value.pop("name")
            flat |= {f"{key}.{inner}": scalar for inner, scalar in value.items()}
        else:
            flat[key] = value
    return flat


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the end of an error message with the most similar word; empty if there is none.

    Candidates are, in this order, names with all parts of the word ("num-server-rounds" for
    "rounds"), top level first; the most similar name; a name with the same ending.
    """
    words = list(words)
    parts = set(word.split("-"))
    whole = [known for known in words if parts <= set(known.rpartition(".")[2].split("-"))]
    whole.sort(key=lambda known: "." in known)
    same_ending = [known for known in words if known.rpartition(".")[2] == word.rpartition(".")[2]]
    likely = whole or difflib.get_close_matches(word, words, n=1) or same_ending
    return f', did you mean "{likely[0]}"?' if likely else ""
