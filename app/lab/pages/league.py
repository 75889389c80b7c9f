"""The league's tables: problems, measured cells, and the standings of the methods.

`league/<problem>.toml` defines a problem, `league/<problem>.csv` has a line per method and measured
column, with what each seed gave. Shapes: n peers, R evaluated rounds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Group

from coterie.app.config import parts, schema
from coterie.app.config.config import VALIDATION_SHARE, Config
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError, flatten, nearest
from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import MEASURES
from coterie.app.experiments.table import Cell, Table, Trial
from coterie.app.report.comparison import as_rich
from coterie.app.runs import atomic, files, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Floats
from coterie.app.runs.settings import RunSettings

PUBLISHED = ROOT / "league"
"""Folder of the published problems and results."""
PRESETS = ROOT / "presets"
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "plain": ("accuracy", "course", "gradients"),
    "attacked": ("attacked",),
    "private": ("private",),
}
"""Condition -> measured columns of its runs."""
_IN_TERMINAL = {
    "accuracy": "accuracy", "worst": "worst", "bytes_to_best": "to best",
    "gradients": "gradients", "attacked": "attacked", "private": "private",
}  # fmt: skip
"""Columns in a terminal, with their short headings."""
_IN_JSON = ("settings", "edges", "rates", "values")
_HEAD = ("method", "column", "digest", *_IN_JSON[:3], "trials", "values", "refused")


@dataclass(frozen=True)
class Problem:
    """Problem of the league."""

    title: str
    about: str  # one sentence
    keys: Mapping[str, Scalar]  # flat keys of its runs
    seeds: int  # number of seeds
    conditions: Mapping[str, Mapping[str, Scalar]]
    """Keys that a condition of `CONDITIONS` adds; "attacked" and "private" only if they are
    defined."""

    @property
    def legend(self) -> str:
        """The attack and the privacy of its conditions in a sentence each; empty without both."""
        texts = []
        for name, keys in self.conditions.items():
            config = Config.from_flat({**self.keys, **keys, "method": "local"})
            attack, privacy = config.attack, config.privacy
            if name == "attacked":
                share = f"{attack.share:.0%} of the peers"
                who = share if attack.share else f"peers {attack.peers}"
                texts.append(f"Attacked: {attack.kind} by {who}.")
            elif name == "private":
                limit = f"epsilon {privacy.budget:g}" if privacy.budget else "no limit of epsilon"
                texts.append(f"Private: {limit}, noise {privacy.noise:g}, delta {privacy.delta:g}.")
        return " ".join(texts)

    def measured(self, lines: Lines) -> Lines:
        """Return the cells of the conditions that the problem has."""
        columns = {column for name in self.conditions for column in CONDITIONS[name]}
        return {at: line for at, line in lines.items() if at[1] in columns}


@dataclass(frozen=True)
class Line:
    """Line of a problem's file: what a method's runs gave in one measured column."""

    digest: str = ""  # of the configurations of its runs; see `coterie.app.lab.league`
    choice: Choice = field(default_factory=Choice)  # settings that tuning chose
    values: Sequence[Any] = ()
    """Per seed. `accuracy`, `attacked`, `private`: test accuracy of each peer, null for an
    attacker; `course`: lists of bytes sent per peer and of mean accuracy, in each evaluated round;
    `gradients`: sample gradients per peer."""
    refused: str = ""
    """Reason why the method cannot run under the condition; `values` is then empty."""


Lines = dict[tuple[str, str], Line]
"""Method and column -> line."""


class Kept:
    """Result of a method with one seed, as the file keeps it; see `measures.Result`."""

    has_accuracy, samples = True, None
    progress: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, method: str, accuracy: Any, course: Any = None, gradients: Any = None):
        self.settings = RunSettings.of({"method": method})
        self.peers = len(accuracy)
        self.diverged = np.zeros(self.peers, dtype=np.bool_)
        self._last = {"test_accuracy": accuracy, "gradient_evaluations": [gradients]}
        courses = course or ([np.nan], [np.nan])
        self._courses = dict(zip(("bytes_sent", "test_accuracy"), courses, strict=True))
        self.rounds = self.course("bytes_sent")

    def last(self, name: str = "test_accuracy") -> Floats:
        """Return test accuracies, (n,), or the mean number of gradients, (1,)."""
        return np.array(self._last[name], dtype=np.float64)  # None becomes NaN

    def course(self, name: str = "test_accuracy") -> Floats:
        """Return the course of bytes sent or of the test accuracy, (R,)."""
        return np.array(self._courses[name], dtype=np.float64)


COLUMNS = (
    *(
        replace(MEASURES[key], panel="plain")
        for key in ("accuracy", "gain", "worst", "harmed", "bytes_to_best", "gradients")
    ),
    *(
        replace(MEASURES["accuracy"], key=key, title=f"{key} %", panel=key)
        for key in ("attacked", "private")
    ),
)
"""Shown columns, in order."""


def problems(directory: Path) -> dict[str, Path]:
    """Return name -> definition of each problem: those published, and those in a directory."""
    return {
        path.stem: path
        for folder in (PUBLISHED, directory)
        for path in sorted(folder.glob("*.toml"))
    }


def problem(name: str, directory: Path, named: Collection[str] = ()) -> Problem:
    """Return a problem, which may name code that the user has `named`, else ConfigError."""
    known = problems(directory)
    if name not in known:
        raise ConfigError(f'unknown problem "{name}"{nearest(name, known)}')
    path = known[name]
    content = files.toml_of(path.parent, path.name) or {}
    conditions = {
        each: flatten(content.pop(each, {}))
        for each in CONDITIONS
        if each == "plain" or each in content
    }
    try:
        title, about, seeds = (content.pop(key) for key in ("title", "about", "seeds"))
        preset, own = content.pop("preset", ""), flatten(content.pop("keys", {}))
    except KeyError as error:
        raise ConfigError(f"{path}: {error.args[0]} is missing") from None
    if content:
        raise ConfigError(f"{path}: unknown key {min(content)}")
    if not isinstance(seeds, int) or seeds < 1:
        raise ConfigError(f"{path}: seeds = {schema.brief(seeds)}: must be a number from 1")
    if preset and not (PRESETS / f"{preset}.toml").resolve().is_relative_to(PRESETS.resolve()):
        raise ConfigError(f"{path}: preset = {schema.brief(preset)}: must be a published preset")
    _, flat = read_items([str(PRESETS / f"{preset}.toml")] if preset else [])
    keys = {**flat, **own}
    for condition in conditions.values():
        parts.refuse_unnamed({**keys, **condition}, named, path)
    return Problem(title, about, keys, seeds, conditions)


def read(name: str, directory: Path) -> Lines:
    """Return the measured cells of a problem: those in a directory, or else those published."""
    here = next((p for p in (directory, PUBLISHED) if (p / f"{name}.csv").is_file()), None)
    text = None if here is None else files.text(here, f"{name}.csv")
    try:
        rows = csv.DictReader((text or "").splitlines())
        return {(row["method"], row["column"]): _line(row) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{name}.csv of the league is damaged: {error}") from None


def _line(row: Mapping[str, str]) -> Line:
    settings, edges, rates, values = (json.loads(row[key]) for key in _IN_JSON)
    choice = Choice(settings, edges, int(row["trials"]), tuple(rates))
    return Line(row["digest"], choice, values, row["refused"])


def write(name: str, measured: Lines, directory: Path) -> None:
    """Write the cells of a problem, in the order of methods and columns."""
    columns = [column for of in CONDITIONS.values() for column in of]
    ranks = {method: rank for rank, method in enumerate(METHODS)}

    def place(at: tuple[str, str]) -> tuple[int, str, int]:
        return ranks.get(at[0], len(ranks)), at[0], columns.index(at[1])

    lines: list[Sequence[object]] = [_HEAD]
    for method, column in sorted(measured, key=place):
        line = measured[method, column]
        choice = line.choice
        lines.append(
            (method, column, line.digest, json.dumps(dict(choice.settings)),
             json.dumps(dict(choice.edges)), json.dumps(choice.rates), choice.trials,
             json.dumps(line.values, separators=(",", ":")), line.refused)
        )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / f"{name}.csv", atomic.as_csv(lines))


def table(lines: Lines, keys: Mapping[str, Scalar]) -> Table:
    """Return the table of a problem whose runs have these flat keys."""
    results: dict[Cell, dict[Trial, Kept]] = {}
    refused: dict[Cell, str] = {}
    for method in dict.fromkeys(method for method, _ in lines):
        for condition, columns in CONDITIONS.items():
            of = [lines.get((method, column), Line()) for column in columns]
            for seed, values in enumerate(zip_longest(*(line.values for line in of))):
                if values[0] is not None:
                    trials = results.setdefault(Cell(method, condition), {})
                    trials[Trial(seed, seed)] = Kept(method, *values)
            if of[0].refused:
                refused[Cell(method, condition)] = of[0].refused
    choices = {method: line.choice for (method, of), line in lines.items() if of == "accuracy"}
    return Table(results, choices, refused=refused, dash=units.NONE, ratio=_split_ratio(keys))


def _split_ratio(keys: Mapping[str, Scalar]) -> float:
    """Return `paired.split_ratio` of a problem, whose runs all hold out validation rows."""
    test, validation = (
        keys.get(f"{keys.get('dataset')}.{part}") for part in ("test", "validation")
    )
    if not isinstance(test, float) or keys.get("split-seed", "seed") != "seed":
        return 0.0
    held = validation if isinstance(validation, float) and validation else VALIDATION_SHARE
    return test / (1 - test - held)


def in_terminal(title: str, made: Table) -> Group:
    """Return a problem's table for a terminal of 80 columns: means only."""
    shown = [
        replace(column, title=_IN_TERMINAL[column.key])
        for column in COLUMNS
        if column.key in _IN_TERMINAL and any(row.summary(column) for row in made.rows)
    ]
    return as_rich(made, title, shown)
