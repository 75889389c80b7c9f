"""Run configuration: parsed once into frozen dataclasses and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from coterie.app.config import limits, parts, recipes, schema
from coterie.app.config.keys import WORLD, ConfigError, TopLevel, ambiguous, locate, tables
from coterie.app.config.registry import METHODS, method_of, schedule_of, topology_of
from coterie.app.config.schema import Scalar
from coterie.clients.attack import Attack
from coterie.clients.defence import Defence
from coterie.clients.engine_options import EngineOptions
from coterie.clients.letter_options import LetterOptions
from coterie.clients.models.options import Adaptation, model_of
from coterie.clients.privacy import Privacy
from coterie.clients.rule import Rule
from coterie.datasets.partition.options import Partition
from coterie.datasets.plugins import Kind
from coterie.datasets.table import Dataset, dataset_of
from coterie.errors import line_of
from coterie.strategies import clock, schedule
from coterie.strategies.brokering import Brokering
from coterie.strategies.errors import ScheduleError, TopologyError
from coterie.strategies.names import shortened
from coterie.strategies.topology import Mixing, Setting

__all__ = ["Config", "ConfigError"]

VALIDATION_SHARE = 0.2
"""Share of the training examples that `validation = "auto"` holds out if a method needs it."""
_OF_ONE_RUN = ("name", "run-dir", "resume", "preflight")


@dataclass(frozen=True)
class Config(TopLevel):
    """Configuration of a run: the top-level keys and option tables. Build it with `from_flat`.

    Attributes
    ----------
    partition : Partition
        Division of the examples among the peers.
    attack : Attack
        Attackers and their attack.
    defence : Defence
        Robust aggregation and checks of received models.
    privacy : Privacy
        Differential privacy.
    engine : EngineOptions
        Computation of models.
    letters : LetterOptions
        Increments against public copies.
    schedule : schedule.Options
        Availability of peers.
    clock : clock.Options
        Virtual clock.
    adaptation : Adaptation
        Changes to the network: the keys that start with "model.".
    options : Rule
        Method with its options.
    dataset_options : object
        Options of the data set; None if it has none. Options of a partition plugin are in
        `partition`.
    model_options : object
        Options of the model; None if it has none.
    """

    partition: Partition = field(default_factory=Partition)
    attack: Attack = field(default_factory=Attack)
    defence: Defence = field(default_factory=Defence)
    privacy: Privacy = field(default_factory=Privacy)
    engine: EngineOptions = field(default_factory=EngineOptions)
    letters: LetterOptions = field(default_factory=LetterOptions)
    schedule: schedule.Options = field(default_factory=schedule.Options)
    clock: clock.Options = field(default_factory=clock.Options)
    adaptation: Adaptation = field(default_factory=Adaptation)
    options: Rule[Any] = field(kw_only=True)
    dataset_options: object = field(kw_only=True)
    model_options: object = field(kw_only=True)

    @property
    def validation(self) -> tuple[str, float]:
        """Key and value of the share of validation examples."""
        if hasattr(self.dataset_options, "validation"):
            return f"{self.table_of('dataset')}.validation", self.dataset_options.validation
        return "partition.validation", self.partition.validation_share

    @property
    def row(self) -> type[Rule[Any]]:
        """Method of the run."""
        return method_of(self.method)

    @property
    def source(self) -> Dataset:
        """Data set of the run."""
        return dataset_of(self.dataset)

    @property
    def network(self) -> str:
        """Name of the model, with "auto" resolved; "auto" if the problem defines its parameters."""
        return (self.source.model if self.model == "auto" else self.model) or "auto"

    @classmethod
    def from_flat(cls, flat: Mapping[str, Scalar]) -> Config:
        """Build a configuration from flat dotted kebab-case keys; missing keys have defaults.

        Raises
        ------
        ConfigError
            If a key or name is unknown, a value has the wrong type, or keys are incompatible.
        """
        flat = recipes.expanded(parts.unpacked(flat))
        theirs = parts.plugin_tables(flat)
        values: dict[str, dict[str, Scalar]] = {table: {} for table in (*tables(), *theirs)}
        for key, value in parts.used(flat).items():
            table, name, annotation = locate(key, theirs)
            try:
                values[table][name] = schema.convert(value, annotation)
                limits.check(key, values[table][name])
            except ValueError as error:
                raise ConfigError(f"{key} = {schema.brief(value)}: {error}") from None
        made: dict[str, Any] = {
            table: _make({**tables(), **theirs}[table], table, values[table])
            for table in values
            if table
        }
        top: dict[str, Any] = dict(values[""])
        choice = parts.chosen(flat)
        method, dataset = method_of(choice["method"]), dataset_of(choice["dataset"])
        model = dataset.model if choice["model"] == "auto" else choice["model"]
        for table in ("partition", choice["dataset"]):  # resolve "auto" by the method's need
            if getattr(made.get(table), "validation", None) == "auto":
                needs = needs_validation(method, model or "auto")
                made[table] = replace(made[table], validation=VALIDATION_SHARE if needs else 0.0)
        if not top.get("local_steps") and not top.get("local_epochs"):
            top["local_steps"] = dataset.local_steps
        split = replace(made["partition"], options=made.get("partition-options"))
        # of the yardsticks "forest" and "logistic", the table of that name is the model's
        options = made.get(_table("method", choice["method"]))
        try:
            config = cls(
                **top,
                partition=split if dataset.divided else Partition(),
                schedule=made["schedule"],
                clock=made["clock"],
                **{table: made[table] for table in WORLD},
                adaptation=made["model"],
                options=options if isinstance(options, method) else method(),
                dataset_options=made.get(_table("dataset", choice["dataset"])),
                model_options=made.get(_table("model", model)),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        config._check()
        return config

    def flat(self) -> dict[str, Scalar]:
        """Return flat dotted keys of everything that this run uses: the inverse of `from_flat`."""
        flat = schema.values(self)
        for table, options in self._tables().items():
            flat |= {f"{table}.{key}": value for key, value in schema.values(options).items()}
        return flat

    def toml(self) -> str:
        """Return TOML text that starts the same run again, in a new directory."""
        top = {k: v for k, v in schema.values(self).items() if k not in _OF_ONE_RUN}
        used = {
            table: schema.values(options)
            for table, options in self._tables().items()
            if table not in WORLD or options != WORLD[table]()
        }
        for table in ambiguous():
            top |= {f"{table}.{key}": value for key, value in used.pop(table, {}).items()}
        return tomli_w.dumps(top | {table: values for table, values in used.items() if values})

    def located(self, stamp: str) -> Config:
        """Return the configuration with its run directory; a missing name is made from `stamp`."""
        if self.run_dir:
            return self
        what = f"{self.label}-{self.dataset}"
        name = self.name or shortened(what, f"-seed{self.seed}-{stamp}")
        return replace(self, name=name, run_dir=str(Path(self.out, name).absolute()))

    def absolute(self, base: Path | None = None) -> Config:
        """Return the configuration with absolute paths, for another working directory.

        Parameters
        ----------
        base : Path or None
            Directory that relative paths start from; None: the working directory.
        """
        base, paths = (base or Path()).absolute(), self.paths
        return self.from_flat(
            {
                key: str(base / str(value)) if value and key in paths else value
                for key, value in self.flat().items()
            }
        )

    @property
    def paths(self) -> frozenset[str]:
        """Keys that name a file or a directory."""
        return parts.paths(parts.plugin_tables(self.chosen))

    @property
    def chosen(self) -> dict[str, Scalar]:
        """Keys that choose the parts, with their values."""
        flat = self.flat()
        return {part.key: flat.get(part.key, part.default) for part in parts.PARTS.values()}

    @property
    def _setting(self) -> Setting:
        return Setting(
            self.peers, self.seed, self.topology_degree, self.topology_probability,
            self.topology_file,
        )  # fmt: skip

    def graph(self) -> npt.NDArray[np.bool_]:
        """Return the allowed edges between peers, (n, n), symmetric.

        Raises
        ------
        ConfigError
            Such a graph does not exist, or its file is missing or invalid.
        """
        try:
            return topology_of(self.topology).matrix(self._setting)
        except TopologyError as error:
            raise ConfigError(str(error)) from None
        except MemoryError:
            raise ConfigError(f"a graph of {self.peers} peers does not fit into memory") from None

    def topology_weights(self) -> Mixing | None:
        """Return the topology's averaging weights if the method uses them, else None.

        Raises
        ------
        TopologyError
            The weights do not preserve the mean over peers, or do not go with the key `mixing`;
            `strategy` checks this earlier.
        """
        if not self.row.mixes:
            return None
        weights = topology_of(self.topology).mixing(self._setting)
        if self.mixing != "samples" and weights is not None:
            raise TopologyError(
                f'mixing = "{self.mixing}": topology = "{self.topology}" has averaging weights of '
                'its own on these edges; set mixing = "samples"'
            )
        return weights

    def strategy(self) -> Brokering:
        """Return the method's strategy for this run.

        Raises
        ------
        ConfigError
            As `graph`.
        """
        method, rounds = self.row, self.num_server_rounds
        try:
            run = schedule.Setting(
                self.peers, rounds, self.seed, self.schedule.max_age,
                method.strategy.receives_on_waking,
                clock.clock(self.clock, self.peers, self.seed),
            )  # fmt: skip
            kind = schedule_of(self.schedule.kind)
            attendance = kind.schedule(self.schedule, run, self.clock.deadline)
            directed = method.strategy.receives_on_waking or not method.strategy.exchanges
            links = topology_of(self.topology).links(self._setting, directed=directed)
            weights = self.topology_weights()
            if weights is not None and self.letters.scheme == "increments":
                raise TopologyError(
                    f'letters.scheme = "increments": topology = "{self.topology}" has averaging '
                    'weights of its own; set letters.scheme = "full"'
                )
            if links is not None and self.mixing == "metropolis" and method.mixes:
                raise TopologyError(
                    'mixing = "metropolis" needs the same undirected edges in all rounds, which '
                    f'topology = "{self.topology}" does not have; set mixing = "uniform"'
                )
        except (ScheduleError, TopologyError) as error:
            raise ConfigError(str(error)) from None
        return self.options.brokering(
            peers=self.peers, rounds=rounds, seed=self.seed, topology=self.graph(),
            evaluate_every=self.evaluate_every, schedule=attendance, links=links,
        )  # fmt: skip

    def _tables(self) -> dict[str, object]:
        chosen = {
            "partition": self.partition if self.source.divided else None,
            "schedule": self.schedule,
            "clock": self.clock,
            "partition-options": self.partition.options,
            **{table: getattr(self, table) for table in WORLD},
            "model": None if self.adaptation == Adaptation() else self.adaptation,
            self.table_of("method"): self.options,
            self.table_of("dataset"): self.dataset_options,
            self.table_of("model"): self.model_options,
        }
        return {name: options for name, options in chosen.items() if options is not None}

    def table_of(self, kind: Kind) -> str:
        """Return the name of the table with the options of a part."""
        return _table(kind, self.network if kind == "model" else getattr(self, kind))

    def _check(self) -> None:
        """Check conditions that involve several tables."""
        data = getattr(self.dataset_options, "check_peers", None)
        parts.ask(self.method, self.options.check, self)
        if data is not None:
            parts.ask(self.dataset, data, self.peers)
        numbers = getattr(self.dataset_options, "numbers", None)
        if numbers is not None and numbers(self.peers) > limits.MAX_NUMBERS:
            raise ConfigError(
                f"{self.dataset}: {numbers(self.peers):,} numbers for {self.peers} peers; at most "
                f"{limits.MAX_NUMBERS:,}"
            )
        sides = getattr(self.dataset_options, "sides", ())
        if math.prod(sides) > limits.MAX_EXAMPLE:
            raise ConfigError(
                f"{self.dataset}: {math.prod(sides):,} numbers in an example; at most "
                f"{limits.MAX_EXAMPLE:,}"
            )
        try:
            self.attack.attackers(self.peers, self.seed)
        except ValueError as error:
            raise ConfigError(f"attack: {error}") from None
        if self.letters.scheme == "increments":
            self._check_increments()
        if library := model_of(self.network).library:
            self._check_library(library)
        if self.privacy.kind != "none":
            if self.schedule.kind != "all" or self.clock.deadline:
                raise ConfigError(
                    'privacy requires schedule.kind = "all" and no deadline: spending is '
                    "counted only if all peers of a node train together"
                )
            why = self.row.exposes if self.method in METHODS else "a plugin has not been checked"
            if why:
                raise ConfigError(f"privacy does not cover {self.method}: {why}")
            if self.start_from:
                raise ConfigError(
                    "privacy does not cover start-from: its models were trained on the same data"
                )
            if getattr(self.dataset_options, "missing", "") == "median":
                raise ConfigError(
                    'privacy: table.missing = "median" would put values of single examples into '
                    'models; set it to "mean" or "indicator"'
                )
            if self.gradient_clip or self.sam_radius:
                raise ConfigError(
                    "privacy: gradient-clip would scale the noise, and sam-radius computes "
                    "every gradient twice; set both to 0 and use privacy.clip"
                )
            if self.class_weights != "none":
                raise ConfigError(
                    "privacy: class-weights would give single examples more influence than "
                    'privacy.clip allows; set class-weights = "none"'
                )
            if self.mixed_precision:
                raise ConfigError("privacy: mixed-precision rounds norms, so clipping is not exact")

    def _check_library(self, library: str) -> None:
        """Refuse what needs gradients or sums of parameters for a model that a library fits."""
        model = f'model = "{self.network}" is fitted by {library} at once'
        if not self.row.any_model:
            able = ", ".join(name for name, row in METHODS.items() if row.any_model)
            raise ConfigError(
                f"{model}, and {self.method} averages parameters or computes gradients: choose "
                f"{able}"
            )
        keys = {
            "privacy.kind": self.privacy.kind != "none",
            "model.*": self.adaptation != Adaptation(),
            "payload": self.payload != "full",
            "letters.scheme": self.letters.scheme != "full",
            "mixed-precision": self.mixed_precision,
            "start-from": bool(self.start_from),
        }
        why = {
            "privacy.kind": "noise is added to gradients, which it does not have",
            "model.*": "it has no layers",
            "start-from": "it is not trained further",
        }
        for key, is_used in keys.items():
            if is_used:
                reason = why.get(key, "its parameters cannot be rounded")
                raise ConfigError(f"{key}: {model}: {reason}; remove the key")

    def _check_increments(self) -> None:
        """Refuse runs whose offers are not the peers' models as of this round."""
        why = ""
        if not self.row.offers_model:
            why = f'method = "{self.method}" does not offer whole models'
        elif self.schedule.kind == "clock" or self.clock.deadline:
            why = "a schedule by the clock publishes models later than it makes them"
        if why:
            raise ConfigError(f'letters.scheme = "increments": {why}; set letters.scheme = "full"')


def needs_validation(method: type[Rule[Any]], model: str) -> bool:
    """Return whether a method needs validation rows for a model.

    For a model that a library fits, predictions out of fold take their place.
    """
    return method.validates and not (method.any_model and bool(model_of(model).library))


def _table(kind: Kind, name: str) -> str:
    """Return the name of the table with the options of a named part."""
    return name if name in parts.PARTS[kind].built_in else f"{kind}-options"


def _make(options: type, table: str, values: Mapping[str, Scalar]) -> object:
    fields = schema.keys(options)
    if missing := [key for key, (name, _) in fields.items() if name not in values]:
        for key in missing:
            if not schema.has_default(options, key):
                raise ConfigError(f"{table}.{key} has no default: set it")
    try:
        return options(**values)
    except ValueError as error:
        raise ConfigError(f"{table}: {error}") from error
    except Exception as error:  # raised by a plugin's options
        raise ConfigError(f"{table}: {line_of(error)}") from error
