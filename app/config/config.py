"""The run configuration: parsed once into frozen dataclasses and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from app.config import schema
from app.config.keys import WORLD, ConfigError, TopLevel, locate, nearest, paths, tables
from app.config.registry import METHODS
from app.config.schema import Scalar
from clients.attack import Attack
from clients.defence import Defence
from clients.models.options import MODELS
from clients.privacy import Privacy
from datasets.partition.options import Partition
from datasets.table import DATASETS
from strategies.brokering import Brokering
from strategies.errors import TopologyError
from strategies.topology import topology

__all__ = ["Config", "ConfigError"]

VALIDATION_SHARE = 0.2
"""Of its training examples: what `validation = "auto"` sets aside where a method needs it."""
_OF_ONE_RUN = ("name", "run-dir", "resume")


@dataclass(frozen=True)
class Config(TopLevel):
    """Everything that decides a run: the top-level keys and these. Build it with `from_flat`.

    Attributes
    ----------
    partition : how the examples are split among peers.
    attack : who lies, and how.
    defence : what is done about it.
    privacy : what protects single examples.
    options, dataset_options, model_options : tables of the chosen method, dataset and model; None
        where a dataset or model has none.
    """

    partition: Partition = field(default_factory=Partition)
    attack: Attack = field(default_factory=Attack)
    defence: Defence = field(default_factory=Defence)
    privacy: Privacy = field(default_factory=Privacy)
    options: object = field(kw_only=True)
    dataset_options: object = field(kw_only=True)
    model_options: object = field(kw_only=True)

    @property
    def validation(self) -> tuple[str, float]:
        """Key and value of the share of its examples that a peer sets aside to judge by."""
        if hasattr(self.dataset_options, "validation"):
            return f"{self.dataset}.validation", self.dataset_options.validation
        return "partition.validation", self.partition.validation_share

    @property
    def validates(self) -> bool:
        """Whether peers judge models by validation data."""
        return METHODS[self.method].validates

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
                said = " ".join(schema.written(value).split())  # a list would be many lines
                raise ConfigError(f"{key} = {said}: {error}") from None
        made = {table: _make(table, given[table]) for table in given if table}
        world: dict[str, Any] = {table: made[table] for table in WORLD}
        top: dict[str, Any] = dict(given[""])
        choice = {key: top.get(key, getattr(cls, key)) for key in ("method", "dataset", "model")}
        for key, table_of_names in (("method", METHODS), ("dataset", DATASETS), ("model", MODELS)):
            if choice[key] not in table_of_names:
                raise ConfigError(
                    f'unknown {key} "{choice[key]}"{nearest(choice[key], table_of_names)}'
                )
        for table in ("partition", choice["dataset"]):  # "auto": what the method needs
            if getattr(made.get(table), "validation", None) == "auto":
                share = VALIDATION_SHARE if METHODS[choice["method"]].validates else 0.0
                made[table] = replace(made[table], validation=share)  # type: ignore[type-var]
        model = _model(choice["model"], choice["dataset"])
        if not top.get("local_steps") and not top.get("local_epochs"):
            top["local_steps"] = DATASETS[choice["dataset"]].local_steps
        try:
            config = cls(
                **top,
                partition=made["partition"] if DATASETS[choice["dataset"]].divided else Partition(),  # type: ignore[arg-type]
                **world,
                options=made.get(choice["method"], METHODS[choice["method"]].options()),
                dataset_options=made.get(choice["dataset"]),
                model_options=made.get(model),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
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
        used = {
            table: schema.values(options)
            for table, options in self._tables().items()
            if table not in WORLD or options != WORLD[table]()
        }
        return tomli_w.dumps(top | {table: values for table, values in used.items() if values})

    def located(self, stamp: str) -> Config:
        """The same run with its directory; without a name it gets one that ends in `stamp`."""
        if self.run_dir:
            return self
        name = self.name or f"{self.method}-{self.dataset}-seed{self.seed}-{stamp}"
        return replace(self, name=name, run_dir=str(Path(self.out, name).absolute()))

    def absolute(self, base: Path | None = None) -> Config:
        """The same run for a process with another working directory: paths are made absolute.

        Parameters
        ----------
        base : where relative paths start; the working directory without.
        """
        base = (base or Path()).absolute()
        return self.from_flat(
            {
                key: str(base / str(value)) if value and key in paths() else value
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

    def strategy(self) -> Brokering:
        """The method's strategy for this run.

        Raises
        ------
        ConfigError
            As `graph`.
        """
        return METHODS[self.method].brokering(
            self.options,
            peers=self.peers,
            rounds=self.num_server_rounds,
            seed=self.seed,
            topology=self.graph(),
            evaluate_every=self.evaluate_every,
        )

    def attackers(self) -> npt.NDArray[np.int64]:
        """The ids of the peers that lie, ascending.

        Raises
        ------
        ConfigError : they are no peers, or nobody is honest.
        """
        try:
            return self.attack.attackers(self.peers, self.seed)
        except ValueError as error:
            raise ConfigError(f"attack: {error}") from None

    def _tables(self) -> dict[str, object]:
        chosen = {
            "partition": self.partition if DATASETS[self.dataset].divided else None,
            **{table: getattr(self, table) for table in WORLD},
            self.method: self.options,
            self.dataset: self.dataset_options,
            _model(self.model, self.dataset): self.model_options,
        }
        return {name: options for name, options in chosen.items() if options is not None}

    def _check(self) -> None:
        """What one table alone cannot see."""
        own = getattr(self.options, "check", None)
        data = getattr(self.dataset_options, "check_peers", None)
        for table, check, what in ((self.method, own, self), (self.dataset, data, self.peers)):
            if check is not None:
                try:
                    check(what)
                except ValueError as error:
                    raise ConfigError(f"{table}: {error}") from None
        self.attackers()
        if self.privacy.kind != "none":
            if why := METHODS[self.method].exposes:
                raise ConfigError(f"privacy does not cover {self.method}: {why}")
            if self.mixed_precision:
                raise ConfigError("privacy: mixed-precision rounds norms, so clipping is not exact")


def _model(model: str, dataset: str) -> str:
    return DATASETS[dataset].model if model == "auto" else model


def _make(table: str, values: Mapping[str, Scalar]) -> object:
    try:
        return tables()[table](**values)
    except ValueError as error:
        raise ConfigError(f"{table}: {error}") from None
