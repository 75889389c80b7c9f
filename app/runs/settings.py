"""Typed record of the keys in a run's config.toml, without loading the parts that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from coterie.app.config import limits, schema
from coterie.app.config.keys import flatten
from coterie.app.config.settings import ambiguous, keys, tables
from coterie.app.runs import files
from coterie.app.runs.files import ResultsError

_OF_DATA = ("dataset", "peers", "split-seed", "data-dir", "late-peers", "partition",
            "dataset-options", "partition-options")  # fmt: skip
"""Keys and tables that decide the peers' data, beside the table of the data set."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Keys of a recorded run, with "_" for "-" and "."; a missing one has today's default."""

    method: str
    recipe: str
    dataset: str
    title: str
    peers: int
    seed: int
    split_seed: int | str
    num_server_rounds: int
    round_seconds: float
    data_dir: str
    keep_models: str
    schedule_kind: str
    schedule_fraction: float
    topology: str
    topology_degree: int
    defence_rule: str
    privacy_kind: str
    privacy_delta: float
    privacy_budget: float
    content: Mapping[str, Any] = field(compare=False, repr=False)  # of config.toml

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Make the record of the content of config.toml, with nested tables."""
        flat, values = flatten(dict(content)), dict[str, Any]()
        for each in fields(cls):
            key = each.name.replace("_", "-")
            key = key if key in keys() else key.replace("-", ".", 1)
            if key in keys():
                values[each.name] = flat.get(key, keys()[key][1].default)
        return cls(content=content, **values)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read config.toml of a run; ResultsError if missing, damaged or not of a run."""
        path, content = directory / "config.toml", files.toml_of(directory, "config.toml")
        if content is None:
            hint = "not a run directory; coterie.Comparison(DIR) reads a comparison"
            raise ResultsError(f"{path}: missing, so this is {hint}")
        peers = content.get("peers")
        if not isinstance(content.get("method"), str) or type(peers) is not int or peers < 1:
            raise ResultsError(f"{path}: no method or number of peers, so not a run directory")
        for table in tables().keys() - {"", *ambiguous()}:
            if not isinstance(content.get(table, {}), dict):
                raise ResultsError(f"{path}: {table} is not a table")
        for key, value in flatten(content).items():
            try:
                _check_value(key, value)
            except ValueError as error:
                raise ResultsError(f"{path}: {key} = {schema.brief(value)}: {error}") from None
        return cls.of(content)

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of options; empty if there is none."""
        table = self.content.get(name)
        return table if isinstance(table, dict) else {}

    @property
    def label(self) -> str:
        """Name of the recipe or else of the method."""
        return self.recipe or self.method

    @property
    def options(self) -> Mapping[str, Any]:
        return self.table(self.method)

    @property
    def dataset_options(self) -> Mapping[str, Any]:
        return self.table(self.dataset)

    @property
    def partition_kind(self) -> str:
        """Kind of the partition; empty for data that come divided."""
        return str(self.table("partition").get("kind", ""))

    @property
    def of_data(self) -> list[Any]:
        """Values of the keys that decide the peers' data, except the seed."""
        return [self.content.get(key) for key in (*_OF_DATA, self.dataset)]


def _check_value(key: str, value: Any) -> None:
    """Refuse an invalid value of a known key; keys of earlier versions are not checked."""
    if not isinstance(value, bool | int | float | str):
        raise ValueError("must be a number or a string")
    if key in keys():
        keys()[key][1].check_type(value)
    limits.check(key, value)
