"""Keys of a run with their values, and everything that is read from their declaration.

A key is a field of `Settings`, or of a component: at the top level ("inline"; an own key replaces
its key) or with a table ("table"; a "quiet" one is in config.toml only if it was changed).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal

import tomli_w

from coterie.app.config import parts, schema
from coterie.app.config.keys import ConfigError
from coterie.app.config.parts import PARTS
from coterie.app.config.registry import METHODS, method_of
from coterie.app.config.schema import Scalar
from coterie.clients.attack import Attack
from coterie.clients.defence import Defence
from coterie.clients.letters import LetterOptions
from coterie.clients.models.options import AND, MODELS, Adaptation, KindOptions, Model, kinds_in
from coterie.clients.privacy import Privacy
from coterie.clients.rule import Rule
from coterie.clients.training import Compute, EngineOptions, Training, Weighting
from coterie.datasets.partition.options import Partition
from coterie.datasets.plugins import Kind
from coterie.datasets.table import DATASETS, Dataset, dataset_of
from coterie.ranges import Option, option, options_of
from coterie.strategies import clock, schedule
from coterie.strategies.names import RULE, is_name


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Keys of a run, see `coterie.app.config.config.Config`."""

    method: str = option("cobo", "Name of the method, see `coterie list methods`, or of a recipe.")
    recipe: str = option(
        "",
        "Name of the recipe that the keys follow, see `coterie list recipes`. Set method to that "
        "name instead.",
    )
    peers: int = option(8, "Number of peers n.", low=1)
    num_server_rounds: int = option(Training.num_server_rounds, "Number of rounds.", low=1)
    seed: int = option(0, "Seed of all random streams.", low=0)
    split_seed: int | Literal["seed"] = option(
        "seed",
        'Seed of the division of the data among the peers; "seed": that of all random streams. '
        "With a number, runs with different seeds train on the same division.",
        low=0,
    )
    dataset: str = option("digits", "Name of the data set, see `coterie list datasets`.")
    model: str = option(
        "auto", 'Name of the model, see `coterie list models`; "auto" depends on the data set.'
    )
    peer_models: str = option(
        "",
        "Models of single peers, by number or by name in the data, as a table: [peer-models] with "
        'lines like "0-cleveland" = "forest"; the other peers have `model`. For methods that '
        "combine predictions: `local`, `mixture`, `selection`, `stacking`. For Flower, the content "
        "of the table as text.",
    )
    training: Training = field(metadata={"inline": Training})
    local_steps: int = option(
        0,
        "Minibatches per round; 0 depends on the data set (10 for digits, else 1), unless "
        "local-epochs is set.",
        low=0,
    )
    topology: str = option(
        "full",
        "Allowed edges between peers, see `coterie list topologies`, or the name of a plugin.",
    )
    topology_degree: int = option(
        2,
        'Number of neighbours in a "k-regular" topology; models that a peer receives per round '
        'in "epidemic" and sends in "push".',
        low=0,
    )
    topology_file: str = option(
        "",
        'Edges of a "file" topology: a JSON list, [[0, 1], [1, 2]], or a CSV of the edges of each '
        "round with the columns round, sender, recipient.",
        path=True,
    )
    mixing: Weighting = option(
        "samples",
        "Weights of FedAvg's average, for FedAvg and the methods that share it: proportional to "
        "the numbers of training examples; equal for all models that a peer received and its own; "
        "or 1 / (1 + max(deg(i), deg(j))) for neighbour j of peer i, with the rest for its own "
        "(Metropolis), which preserves the mean over all peers. Other methods ignore it.",
    )
    start_from: str = option(
        "",
        "Name of an earlier run in `out`, or its absolute path: each peer starts from its own "
        "final model of that run, instead of an initialised one. For simulations; network and "
        "peers must be the same. Empty: no such run.",
    )
    evaluate_every: int = option(
        10, "Rounds between two evaluations; the last round is always evaluated.", low=1
    )
    evaluate_peers: Literal["all", "participants"] = option(
        "all",
        "Peers that are evaluated in these rounds of a simulation with partial participation: all, "
        "the sleeping ones with the model that they have, or participants only, which is faster. "
        "In the first and the last round it is all. In a deployment, and where rounds follow the "
        "clock, participants.",
    )
    clearance: bool = option(
        False,
        "Measure in evaluated rounds of a simulation what each peer's letter tells about its "
        "training examples (`coterie compare --clearance`); institutions measure as their policy "
        "says.",
    )
    round_seconds: float = option(
        600.0,
        "Maximum seconds of a node for a round; then the others continue without it.",
        above=0,
        scope="relay",
    )
    join_seconds: float = option(
        600.0,
        "Maximum seconds that the relay waits for peers: at the start for all of them, later for "
        "a quorum.",
        low=0,
        scope="relay",
    )
    late_peers: float = option(
        0.0,
        "Fraction of peers that join only for the last fifth of the rounds; for runs without "
        "Flower.",
        low=0,
        below=1,
    )
    withhold: str = option(
        "",
        'Peers whose messages (letters) reach no other peer, as "0,3"; they still receive. A '
        "question of such a peer is answered, but neither its model nor its answers enter another "
        "model (`coterie contribution`).",
    )
    quorum: int = option(
        0,
        "Number of peers required to start a round; 0: all in the first round, then any number.",
        low=0,
        scope="relay",
    )
    keep_models: Literal["last", "best"] = option(
        "last",
        "Models that a run leaves: those of the last round, or each peer's of the evaluated round "
        "with its smallest validation loss, with the metrics of that round in its card.",
    )
    patience: int = option(
        0,
        "Number of evaluated rounds without a smaller mean validation loss of the peers after "
        'which the run ends; 0: never. Requires keep-models = "best".',
        low=0,
    )
    compute: Compute = field(metadata={"inline": Compute})
    payload: Literal["full", "float16", "bfloat16", "int8", "int4"] = option(
        "full", "Precision of numbers in messages (letters), see `coterie.app.wire.quantise`."
    )
    out: str = option(
        "runs",
        "Directory of run directories; a run writes to `<out>/<name>`.",
        path=True,
        scope="site",
    )
    data_dir: str = option("data", "Directory of data sets and downloads.", path=True)
    track: str = option(
        "",
        "Experiment trackers that log the metrics of every round, separated by commas: "
        '"tensorboard", "mlflow", "wandb"; they must be installed. Not for a plain `flwr run`.',
        scope="relay",
    )
    sealing: bool | Literal["auto"] = option(
        "auto",
        'Encrypt letters end to end; "auto": in a deployment. A node with keys accepts only '
        "encrypted runs.",
        scope="relay",
    )
    name: str = option(
        "",
        'Name of the run directory, at most 64 letters, digits, ".", "-" and "_"; empty: derived '
        "from the start time.",
        scope="start",
    )
    title: str = option(
        "",
        "Title of the report and of comparison pages; empty: methods and data, such as "
        '"cobo on digits".',
        scope="relay",
    )
    trust: str = option(
        "",
        "Trust file of a deployment's relay: each node must prove with a signature that it hosts "
        "its peer. Empty: a peer belongs to the first node that claims it.",
        path=True,
        scope="site",
    )
    preflight: bool = option(
        False,
        "Check whether a deployment's nodes are ready, without training; set by `coterie "
        "preflight`.",
        scope="start",
    )
    run_dir: str = option(
        "", "Absolute run directory, set by the launcher.", path=True, scope="start"
    )
    resume: bool = option(False, "Continue the run in `run-dir`.", scope="start")

    partition: Partition = field(metadata={"table": Partition})
    schedule: schedule.Options = field(metadata={"table": schedule.Options})
    clock: clock.Options = field(metadata={"table": clock.Options})
    attack: Attack = field(metadata={"table": Attack, "quiet": True})
    defence: Defence = field(metadata={"table": Defence, "quiet": True})
    privacy: Privacy = field(metadata={"table": Privacy, "quiet": True})
    engine: EngineOptions = field(metadata={"table": EngineOptions, "quiet": True})
    letters: LetterOptions = field(metadata={"table": LetterOptions, "quiet": True})
    adaptation: Adaptation = field(metadata={"table": Adaptation, "name": "model"})
    options: Rule[Any]  # the method with its options
    dataset_options: object  # None if it has none; those of a partition plugin: partition.options
    model_options: object  # None if it has none

    def __post_init__(self) -> None:
        if self.late_peers and min(self.peers, self.num_server_rounds) < 2:
            raise ValueError("late-peers requires at least two peers and two rounds")
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
        return tuple(map(int, self.withhold.split(","))) if self.withhold else ()

    @property
    def division(self) -> int:
        return self.seed if self.split_seed == "seed" else self.split_seed

    @property
    def validation(self) -> tuple[str, float]:
        """Key and value of the share of validation examples."""
        if hasattr(self.dataset_options, "validation"):
            return f"{self.table_of('dataset')}.validation", self.dataset_options.validation
        return "partition.validation", self.partition.validation_share

    @property
    def row(self) -> type[Rule[Any]]:
        return method_of(self.method)

    @property
    def source(self) -> Dataset:
        return dataset_of(self.dataset)

    @property
    def network(self) -> str:
        """Name of the model or models, "auto" resolved unless the problem has its own."""
        return AND.join(self.kinds)

    @property
    def kinds(self) -> tuple[str, ...]:
        return kinds_of(self.peer_models, self._common_model, self.peers)

    def model_of_peer(self, peer: int, name: str) -> str:
        """Return the model of a peer with a number and, if it is known, a name."""
        table = by_peer(self.peer_models)
        return table.get(str(peer), table.get(name, self._common_model))

    @property
    def _common_model(self) -> str:
        return (self.source.model if self.model == "auto" else self.model) or "auto"

    @property
    def chosen(self) -> dict[str, Scalar]:
        """Keys that choose the parts, with their values."""
        flat = self.flat()
        return {p.key: flat.get(p.key, keys()[p.key][1].default) for p in PARTS.values()}

    @property
    def known(self) -> Mapping[str, tuple[str, Option]]:
        """Dotted keys, those of the run's plugins included, with table and option."""
        return known_keys(self.chosen)

    @property
    def paths(self) -> frozenset[str]:
        """Keys that name a file or a directory."""
        return frozenset(key for key, (_, each) in self.known.items() if each.is_path)

    def table_of(self, kind: Kind) -> str:
        """Return the name of the table with the options of a part."""
        return parts.table_of(kind, self.network if kind == "model" else getattr(self, kind))

    def flat(self) -> dict[str, Scalar]:
        """Return flat dotted keys of everything that this run uses."""
        flat = self._top()
        for table, options in self._tables().items():
            flat |= {f"{table}.{key}": value for key, value in schema.values(options).items()}
        return flat

    def toml(self) -> str:
        """Return TOML text that starts the same run again, in a new directory."""
        top = {key: v for key, v in self._top().items() if keys()[key][1].scope != "start"}
        used = {name: schema.values(options) for name, options in self._tables(quiet=False).items()}
        for table in ambiguous():
            top |= {f"{table}.{key}": value for key, value in used.pop(table, {}).items()}
        return tomli_w.dumps(top | {table: values for table, values in used.items() if values})

    def _top(self) -> dict[str, Scalar]:
        holders = (self, *(getattr(self, name) for name in INLINED))
        return {
            key: next(getattr(of, each.name) for of in holders if hasattr(of, each.name))
            for key, each in options_in("").items()
        }

    def _tables(self, *, quiet: bool = True) -> dict[str, object]:
        """Return table -> options that this run uses; `quiet` False: without unchanged features."""
        used: dict[str, object] = {}
        for table, each in COMPONENTS.items():
            used[table] = getattr(self, each.name)
            if table == "clock":
                used["partition-options"] = self.partition.options
            if not quiet and each.metadata.get("quiet") and used[table] == tables()[table]():
                used[table] = None
        if not self.source.divided:
            used["partition"] = None
        if self.adaptation == Adaptation():
            used["model"] = None
        used[self.table_of("method")] = self.options
        used[self.table_of("dataset")] = self.dataset_options
        if isinstance(self.model_options, KindOptions):
            used |= zip(self.kinds, self.model_options.of, strict=True)
        else:
            used[self.table_of("model")] = self.model_options
        return {name: options for name, options in used.items() if options is not None}


@lru_cache
def by_peer(text: str) -> Mapping[str, str]:
    """Return the value of `peer-models` as a table of models by peer."""
    try:
        table: dict[str, Any] = tomllib.loads(f"_ = {{{text}}}")["_"]
    except (ValueError, RecursionError):
        table = {"": None}
    for model in table.values():
        if not isinstance(model, str):
            raise ConfigError(
                f"peer-models = {schema.brief(text)}: must be a table of models by peer: "
                '[peer-models] with lines like "0-cleveland" = "forest"'
            )
        parts.name_of("model", model)
    return table


def kinds_of(text: str, common: str, peers: int) -> tuple[str, ...]:
    """Return the models that peers have, by the values of `peer-models`, `model` and `peers`."""
    table = by_peer(text)
    for peer in table:
        if peer.isdecimal() and peer not in map(str, range(peers)):
            raise ConfigError(f"peer-models.{peer}: peers are 0 to {peers - 1}")
    others = () if len(table) == peers else (common,)
    kinds = tuple(dict.fromkeys((*others, *table.values())))
    try:
        return kinds_in(AND.join(kinds))
    except ValueError as error:
        raise ConfigError(f"peer-models: {error}") from None


INLINED: Mapping[str, type] = {
    each.name: each.metadata["inline"] for each in fields(Settings) if "inline" in each.metadata
}
"""Field of Settings -> component whose keys are at the top level."""
COMPONENTS: Mapping[str, Field[Any]] = {
    each.metadata.get("name", each.name): each
    for each in fields(Settings)
    if "table" in each.metadata
}
"""Table -> field with its component."""


@lru_cache
def tables() -> Mapping[str, type]:
    """Return table name -> dataclass; "" is the top level. Tables without options are omitted."""
    run = {table: each.metadata["table"] for table, each in COMPONENTS.items()}
    rows: dict[str, Dataset | Model] = {**DATASETS, **MODELS}
    options = {**METHODS, **{name: row.options for name, row in rows.items() if row.options}}
    named = {"": Settings, **run, **options}
    return {name: table for name, table in named.items() if options_of(table)}


@lru_cache
def options_in(table: str) -> Mapping[str, Option]:
    """Return key -> option of a table; those of inlined components are in the table ""."""
    own = options_of(tables()[table])
    if table:
        return own
    found: dict[str, Option] = {}
    for each in fields(Settings):
        inlined = options_of(INLINED[each.name]) if each.name in INLINED else {}
        found |= {key: option for key, option in inlined.items() if key not in found}
        found |= {key: option for key, option in own.items() if option.name == each.name}
    return found


@lru_cache
def keys() -> Mapping[str, tuple[str, Option]]:
    """Return dotted key -> (table, option), in the order of help and pyproject.toml."""
    top = {key: ("", each) for key, each in options_in("").items()}
    return top | keys_of({name: table for name, table in tables().items() if name})


def known_keys(flat: Mapping[str, Any]) -> Mapping[str, tuple[str, Option]]:
    """Return `keys`, and those of the plugins that flat keys choose."""
    return {**keys(), **keys_of(parts.plugin_tables(flat))}


def keys_of(theirs: Mapping[str, type]) -> dict[str, tuple[str, Option]]:
    """Return dotted key -> (table, option) of tables."""
    return {
        f"{table}.{key}": (table, each)
        for table, options in theirs.items()
        for key, each in options_of(options).items()
    }


def ambiguous() -> tuple[str, ...]:
    """Return the tables whose name is also a key; their keys are written as "model.personal"."""
    return tuple(table for table in tables() if table in keys())
