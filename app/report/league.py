"""The league's tables: problems, measured cells, and the standings of the methods.

`league/<problem>.toml` defines a problem, `league/<problem>.csv` has a line per method and measured
column, with what each seed gave; means, tests and `bytes_to_best` are computed from the lines.
There is no score over columns or problems.

Shapes: n peers, R evaluated rounds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from coterie.app.config import parts, schema
from coterie.app.config.config import VALIDATION_SHARE, Config
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError, flatten, nearest
from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar
from coterie.app.report.measures import COLUMNS, Column, cost_to_best
from coterie.app.report.paired_test import leaders
from coterie.app.report.tuning import Choice
from coterie.app.runs import atomic, cells, files, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Floats
from coterie.strategies.names import display

PUBLISHED = ROOT / "league"
"""Folder of the published problems and results."""
PRESETS = ROOT / "presets"
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "plain": ("accuracy", "course", "gradients"),
    "attacked": ("attacked",),
    "private": ("private",),
}
"""Condition -> measured columns of its runs."""
_TITLES = {"attacked": "attacked %", "private": "private %"}
_IN_TERMINAL = {
    "accuracy": "accuracy", "worst": "worst", "bytes_to_best": "to best",
    "gradients": "gradients", "attacked": "attacked", "private": "private",
}  # fmt: skip
"""Columns in a terminal, with their short headings."""
_HEAD = (
    "method", "column", "digest", "settings", "edges", "rates", "trials", "values", "refused",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Problem of the league.

    Attributes
    ----------
    title, about : str
        Heading, and description in one sentence.
    keys : Mapping of str to Scalar
        Flat keys of its runs.
    seeds : int
        Number of seeds.
    conditions : Mapping of str to Mapping of str to Scalar
        Keys that a condition of `CONDITIONS` adds; "attacked" and "private" only if they are
        defined.
    """

    title: str
    about: str
    keys: Mapping[str, Scalar]
    seeds: int
    conditions: Mapping[str, Mapping[str, Scalar]]

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

    def measured(self, cells: Cells) -> Cells:
        """Return the cells of the conditions that the problem has."""
        columns = {column for name in self.conditions for column in CONDITIONS[name]}
        return {at: cell for at, cell in cells.items() if at[1] in columns}


@dataclass(frozen=True)
class Cell:
    """Measured cell: a method and a column of a problem.

    Attributes
    ----------
    digest : str
        Digest of the configurations of its runs; see `coterie.app.comparisons.league`.
    choice : Choice
        Settings that tuning chose.
    values : list
        Per seed. `accuracy`, `attacked`, `private`: test accuracy of each peer, null for an
        attacker; `course`: lists of bytes sent per peer and of mean accuracy, in each evaluated
        round; `gradients`: sample gradients per peer.
    refused : str
        Reason why the method cannot run under the condition; `values` is then empty.
    """

    digest: str = ""
    choice: Choice = field(default_factory=Choice)
    values: Sequence[Any] = ()
    refused: str = ""


Cells = dict[tuple[str, str], Cell]
"""Method and column -> cell."""


@dataclass(frozen=True)
class Entry:
    """Cell of a standing: mean over seeds as text, sort value, and whether it leads the column."""

    text: str
    value: float | None = None
    leads: bool = False


@dataclass(frozen=True)
class Standing:
    """Row of a problem's table: a method, and its entry in each column of `columns`."""

    method: str
    name: str
    is_reference: bool
    choice: Choice
    entries: Mapping[str, Entry]


def columns() -> dict[str, Column]:
    """Return the shown columns by key, in order."""
    by_key = {column.key: column for column in COLUMNS}
    keys = "accuracy", "gain", "worst", "harmed", "bytes_to_best", "gradients"
    return {key: by_key[key] for key in keys} | dict.fromkeys(_TITLES, by_key["accuracy"])


def heading(key: str) -> str:
    """Return the heading of a column."""
    return _TITLES.get(key) or columns()[key].title


def problems(directory: Path) -> dict[str, Path]:
    """Return name -> definition of each problem: those published, and those in a directory."""
    return {
        path.stem: path
        for folder in (PUBLISHED, directory)
        for path in sorted(folder.glob("*.toml"))
    }


def problem(name: str, directory: Path, named: Collection[str] = ()) -> Problem:
    """Return a problem.

    Parameters
    ----------
    named : Collection of str
        Code that the user has named and the definition may name; see `parts.refuse_unnamed`.

    Raises
    ------
    ConfigError
        There is no such problem, its definition is wrong, or names other code.
    """
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


def read(name: str, directory: Path) -> Cells:
    """Return the measured cells of a problem: those in a directory, or else those published.

    Raises
    ------
    ResultsError
        A line is damaged.
    """
    here = next((p for p in (directory, PUBLISHED) if (p / f"{name}.csv").is_file()), None)
    text = None if here is None else files.text(here, f"{name}.csv")
    try:
        return {
            (row["method"], row["column"]): Cell(
                row["digest"],
                Choice(
                    json.loads(row["settings"]),
                    json.loads(row["edges"]),
                    int(row["trials"]),
                    tuple(json.loads(row["rates"])),
                ),
                json.loads(row["values"]),
                row["refused"],
            )
            for row in csv.DictReader((text or "").splitlines())
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{name}.csv of the league is damaged: {error}") from None


def write(name: str, measured: Cells, directory: Path) -> None:
    """Write the cells of a problem, in the order of methods and columns."""
    order = [column for of in CONDITIONS.values() for column in of]
    ranks = {method: rank for rank, method in enumerate(METHODS)}
    lines: list[Sequence[object]] = [_HEAD]
    for method, column in sorted(
        measured, key=lambda at: (ranks.get(at[0], len(ranks)), at[0], order.index(at[1]))
    ):
        cell = measured[method, column]
        choice = cell.choice
        lines.append(
            (method, column, cell.digest, json.dumps(dict(choice.settings)),
             json.dumps(dict(choice.edges)), json.dumps(choice.rates), choice.trials,
             json.dumps(cell.values, separators=(",", ":")), cell.refused)
        )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / f"{name}.csv", cells.as_csv(lines))


def standings(measured: Cells, keys: Mapping[str, Scalar]) -> list[Standing]:
    """Return the rows of a problem's table, in the order of methods.

    Parameters
    ----------
    keys : Mapping of str to Scalar
        Flat keys of the problem's runs.
    """
    methods = list(dict.fromkeys(method for method, _ in measured))
    shown = columns()
    numbers = {method: _numbers(method, measured) for method in methods}
    redivided = _redivision(keys)
    leading = {
        key: _leading(key, measured, numbers, redivided)
        for key, column in shown.items()
        if column.better
    }
    return [
        Standing(
            method,
            display(method),
            is_reference(method),
            measured[method, "accuracy"].choice if (method, "accuracy") in measured else Choice(),
            {
                key: _entry(
                    numbers[method].get(key),
                    column,
                    measured.get((method, key), Cell()).refused,
                    leads=method in leading.get(key, ()),
                )
                for key, column in shown.items()
            },
        )
        for method in methods
    ]


def _redivision(keys: Mapping[str, Scalar]) -> float:
    """Return `paired_test.redivision` of a problem, whose runs all hold out validation rows."""
    test, validation = (
        keys.get(f"{keys.get('dataset')}.{part}") for part in ("test", "validation")
    )
    if not isinstance(test, float) or keys.get("split-seed", "seed") != "seed":
        return 0.0
    held = validation if isinstance(validation, float) and validation else VALIDATION_SHARE
    return test / (1 - test - held)


def is_reference(method: str) -> bool:
    """Return whether the method is a reference, which is not ranked."""
    return method in METHODS and bool(METHODS[method].unranked({}))


def _numbers(method: str, measured: Cells) -> dict[str, list[float]]:
    """Return column -> value per seed of a method."""
    of = {key: _peers(measured, method, key) for key in ("accuracy", *_TITLES)}
    local = _peers(measured, "local", "accuracy")
    numbers = {key: [float(np.nanmean(x_n)) for x_n in values] for key, values in of.items()}
    numbers["worst"] = [float(np.nanmin(x_n)) for x_n in of["accuracy"]]
    if len(local) == len(of["accuracy"]) and method != "local":
        gain_sn = [x_n - y_n for x_n, y_n in zip(of["accuracy"], local, strict=True)]
        numbers["gain"] = [float(np.nanmean(gain_n)) for gain_n in gain_sn]
        numbers["harmed"] = [float((g_n[~np.isnan(g_n)] < 0).mean()) for g_n in gain_sn]
    numbers["gradients"] = list(measured.get((method, "gradients"), Cell()).values)
    numbers["bytes_to_best"] = _bytes_to_best(method, measured)
    return {key: values for key, values in numbers.items() if values}


def _peers(measured: Cells, method: str, column: str) -> list[Floats]:
    """Return the values of the peers, (n,) per seed."""
    return [np.array(v, dtype=np.float64) for v in measured.get((method, column), Cell()).values]


def _bytes_to_best(method: str, measured: Cells) -> list[float]:
    """Return the bytes until 90 % of the gain of the best ranked method, per seed.

    The best method is the one with the best mean over seeds: the best of a single seed is there by
    chance.
    """
    courses = {at: cell.values for (at, column), cell in measured.items() if column == "course"}
    if method not in courses or "local" not in courses:
        return []
    ends = {at: np.array([of[1][-1] for of in seeds]) for at, seeds in courses.items()}
    best = max((at for at in ends if not is_reference(at)), key=lambda at: ends[at].mean())
    result = []
    for (bytes_r, accuracy_r), alone, end in zip(
        courses[method], ends["local"], ends[best], strict=True
    ):
        gain_r = np.array(accuracy_r, dtype=np.float64) - alone
        cost = cost_to_best(gain_r, np.array(bytes_r, dtype=np.float64), end - alone)
        result += [] if cost is None else [cost]
    return result


def _leading(
    key: str,
    measured: Cells,
    numbers: Mapping[str, Mapping[str, Sequence[float]]],
    redivided: float,
) -> list[str]:
    """Return the method with the best mean of a column, and those not significantly worse.

    Empty if no method is significantly worse, or fewer than two have a value.
    """
    sign = -1.0 if columns()[key].better == "low" else 1.0
    local = _peers(measured, "local", "accuracy")
    values = {}
    for method, of in numbers.items():
        if key in of and not is_reference(method):
            by_peer = _peers(measured, method, "accuracy" if key in ("gain", "harmed") else key)
            if key == "harmed":
                pairs = zip(by_peer, local, strict=True)
                by_peer = [np.where(np.isnan(x_n - y_n), np.nan, x_n < y_n) for x_n, y_n in pairs]
            by_peer = by_peer or [np.array([x]) for x in of[key]]
            values[method] = {seed: sign * x_p for seed, x_p in enumerate(by_peer)}
    lead = leaders(values, redivided) if len(values) > 1 else []
    return [] if len(lead) == len(values) else lead


def _entry(values: Sequence[float] | None, column: Column, refused: str, *, leads: bool) -> Entry:
    if not values:
        return Entry("refused" if refused else units.NONE)
    mean = float(np.mean(values))
    text = column.show(mean)
    if len(values) > 1 and column.better and np.isfinite(mean):
        deviation = float(np.std(values, ddof=1))
        text += f" ± {(column.deviation or column.show)(deviation).lstrip('+')}"
    return Entry(text, mean, leads)


def table(title: str, rows: Sequence[Standing]) -> Table:
    """Return a problem's table for a terminal of 80 columns: means only."""
    keys = [key for key in _IN_TERMINAL if any(row.entries[key].value is not None for row in rows)]
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column("method", no_wrap=True)
    for key in keys:
        made.add_column(_IN_TERMINAL[key], justify="right", no_wrap=True)
    for row in rows:
        entries = [row.entries[key] for key in keys]
        texts = [Text(e.text.split(" ± ")[0], "bold" if e.leads else "") for e in entries]
        made.add_row(row.name + " *" * row.is_reference, *texts)
    return made
