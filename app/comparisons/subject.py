"""The subject of a comparison: methods, seeds, tuning and keys; a directory holds one subject."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomli_w
from pydantic import TypeAdapter

from coterie.app.comparisons.tune import Tuning
from coterie.app.config import schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import keys
from coterie.app.runs import atomic, files

_FILE = "comparison.toml"
_NOT_COMPARED = ("method", "seed", "out", "name", "title", "run-dir", "resume")


@dataclass(frozen=True)
class Subject:
    """Subject of a comparison, saved beside its tables lest another comparison overwrite them."""

    methods: list[str]
    seeds: list[int]  # of each method
    tuned: bool
    keys: dict[str, Scalar]  # configuration that all runs share
    halved: bool = False  # tuning used successive halving
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    """Keys of single methods, by method."""

    @classmethod
    def of(
        cls,
        configs: Mapping[str, Sequence[Config]],
        flat: Mapping[str, Scalar],
        tuning: Tuning | None,
        settings: Mapping[str, Mapping[str, Scalar]],
    ) -> Subject:
        """Return the subject of configurations made from the keys `flat`."""
        seeds = [config.seed for config in next(iter(configs.values()))]
        keys = {key: value for key, value in sorted(flat.items()) if key not in _NOT_COMPARED}
        by_method = {method: dict(sorted(of.items())) for method, of in settings.items()}
        return cls(list(configs), seeds, tuning is not None, keys, tuning == "halving", by_method)

    @classmethod
    def read(cls, directory: Path) -> Subject:
        """Return a directory's subject; ValueError if it is missing, damaged or another kind."""
        return TypeAdapter(cls).validate_python(files.toml_of(directory, _FILE) or {})

    def check(self, directory: Path) -> None:
        """Refuse a directory with a comparison whose results this one would drop."""
        if not (directory / "comparison.csv").exists():
            return
        try:
            there = Subject.read(directory)
        except ValueError:
            raise ConfigError(
                f"{directory} holds another comparison: choose another --out"
            ) from None
        if lacks := self._lacks(there):
            raise ConfigError(
                f"{directory} holds a comparison of other settings ({lacks}): choose another "
                "--out, or include them"
            )

    def place(self, directory: Path) -> Path:
        """Return the first of NAME, NAME-2, NAME-3, ... without a comparison of other settings."""
        names = (f"{directory.name}-{number}" for number in itertools.count(2))
        for place in itertools.chain([directory], map(directory.with_name, names)):
            with suppress(ConfigError):
                self.check(place)
                return place
        raise AssertionError

    def _lacks(self, there: Subject) -> str:
        """Return the first setting of another comparison that this one lacks; empty if none."""
        known = keys()
        for key in self.keys | there.keys:
            default = known[key][1].default if key in known else ""
            before = there.keys.get(key, default)
            if before != self.keys.get(key, default):
                return f"{key} = {schema.written(before)}"
        lost = [name for name in there.methods if name not in self.methods]
        lost += [f"seed {seed}" for seed in there.seeds if seed not in self.seeds]
        if lost:
            return ", ".join(lost)
        for method in there.methods:
            ours, theirs = self.settings.get(method, {}), there.settings.get(method, {})
            for key in {**theirs, **ours}:
                if key not in theirs:
                    return f"no {method}:{key}"
                if ours.get(key) != theirs[key]:
                    return f"{method}:{key} = {schema.written(theirs[key])}"
        if (there.tuned, there.halved) != (self.tuned, self.halved):
            tuned = "--tune" if there.tuned else "no --tune"
            return "--halving" if there.halved else tuned
        return ""

    def write(self, directory: Path) -> None:
        """Write the subject beside the tables of the comparison."""
        atomic.write(directory / _FILE, tomli_w.dumps(asdict(self)))
