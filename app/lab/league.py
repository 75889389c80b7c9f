"""League: every method on the same problems, tuned equally; each cell is measured once and kept.

A problem has up to three conditions: "plain"; "attacked", with the settings of "plain"; and
"private", tuned for itself. Tuning is that of `coterie compare --tune` (`tune.tuned`). The first
methods of a problem decide the learning rates; later ones are tried with these. A cell is written
as soon as its seeds have ended, with a digest of its configurations: the keys that decide its
results, with their values (`app.config.digest.result_keys`), code of plugins, and the content of
the user's own data and other files. A cell whose digest differs is measured again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coterie.app.comparisons import tune
from coterie.app.comparisons.run import report_failures
from coterie.app.config import sources
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import result_keys
from coterie.app.config.keys import FORMER, GONE
from coterie.app.config.preflight import check, problem_of
from coterie.app.config.recipes import recipes
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.experiments import grid
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.grid import Grid
from coterie.app.experiments.table import Cell
from coterie.app.lab.pages import league
from coterie.app.lab.pages.league import CONDITIONS, Line, Lines, Problem
from coterie.app.runners import sweep
from coterie.app.runs import provenance
from coterie.app.runs.rundir import Floats, Run
from coterie.datasets.problem import DataError
from coterie.datasets.table import DATASETS

RUNS = Path("runs/league")
"""Directory of the runs."""
BEFORE: dict[str, Scalar] = {
    **{key: value for keys in sources.BEFORE.values() for key, value in keys.items()},
    "federico.starts": "different",
    "ifca.starts": "different",
    "table.group": "",
    "table.time": "",
}
"""Key that is newer than kept cells -> value with which their runs come out the same. With this
value, a key is not in a digest, so those cells stay valid. A key of a feature that is off by
default needs no entry."""
_FORMER: dict[tuple[str, Scalar], Scalar] = {("table.split", "random"): "by-class"}
"""Key and value -> name of the value in the digests of kept cells."""
_NAMES = {key: former for former, key in FORMER.items()}
"""Key -> its name in the digests of kept cells."""
_TUNED_AS = {"attacked": "plain"}
"""Condition -> condition whose choices it uses."""


def entrants() -> list[str]:
    """Return the names of all methods, and of the recipes that can be run."""
    return [*METHODS, *(name for name, recipe in recipes().items() if not recipe.missing)]


def run(
    names: Sequence[str],
    methods: Sequence[str],
    directory: Path,
    workers: int | None,
    console: Console,
    named: Collection[str] = (),
) -> None:
    """Measure the missing cells of problems, the plain ones of all problems first."""
    # A problem without its data is left out. After a ConfigError nothing was started; after a
    # SweepError the next attempt tries the failed run again.
    tables, failed = [], dict[str, Exception]()
    for name in names:
        problem = league.problem(name, directory, named)
        try:
            for condition in problem.conditions:
                configurations(problem, condition, "local", {})
        except ConfigError as error:
            raise ConfigError(f"{name}.toml: {error}") from None
        except DataError as error:
            console.print(f"left out: {name}: {error}", soft_wrap=True)
        else:
            tables.append(_Problem(name, problem, methods, directory, workers, console))
    for condition in CONDITIONS:
        for table in tables:
            if condition in table.problem.conditions:
                console.print(f"{table.problem.title}: {condition}", soft_wrap=True)
                failed |= table.measure(condition)
    report_failures(failed, console)


@dataclass(frozen=True)
class _Problem:
    """Table of a problem; the parameters are those of `run`."""

    name: str
    problem: Problem
    methods: Sequence[str]
    directory: Path
    workers: int | None
    console: Console

    def measure(self, condition: str) -> dict[str, Exception]:
        """Measure the missing cells of a condition; return the errors by run directory."""
        measured = league.read(self.name, self.directory)
        tuned_as = CONDITIONS[_TUNED_AS.get(condition, condition)][0]
        choices = {at: cell.choice for (at, column), cell in measured.items() if column == tuned_as}
        missing = self._missing(condition, measured, choices)
        failed, work = dict[str, Exception](), RUNS / self.name / condition
        if condition not in _TUNED_AS and missing:
            fresh = [choice.rates for method, choice in choices.items() if method not in missing]
            rates = max(fresh, key=len, default=())
            first = {
                method: configurations(self.problem, condition, method, {})[0] for method in missing
            }
            choices, failed = tune.tuned(first, "whole", work, self.workers, self.console, rates)
        cells = {
            Cell(method): configurations(self.problem, condition, method, choice.settings)
            for method, choice in choices.items()
            if method in missing
        }
        return failed | self._finish(condition, Grid(cells).with_run_dir(work), choices)

    def _missing(self, condition: str, measured: Lines, choices: Mapping[str, Choice]) -> list[str]:
        """Return the methods to measure; write the cells of those that cannot run."""
        missing, column = [], CONDITIONS[condition][0]
        for method in self.methods:
            settings = choices.get(method, Choice()).settings
            try:
                configs = configurations(self.problem, condition, method, settings)
            except ConfigError as error:
                if (method, "accuracy") in measured:
                    self._add({(method, column): Line(refused=str(error))})
                else:
                    self.console.print(f"left out: {method}: {error}", soft_wrap=True)
            else:
                if not is_of(measured.get((method, column), Line()), configs):
                    missing.append(method)
        return missing

    def _add(self, lines: Lines) -> None:
        """Add cells to the file, to which another process may have added some."""
        kept = league.read(self.name, self.directory)
        league.write(self.name, {**kept, **lines}, self.directory)

    def _finish(
        self, condition: str, grid: Grid, choices: Mapping[str, Choice]
    ) -> dict[str, Exception]:
        """Run all seeds of each method, and write its lines when the last run ends."""

        def keep(cell: Cell) -> None:
            configs = grid.cells[cell]
            if all(map(sweep.is_finished, configs)):
                runs = [Run.read(config.run_dir) for config in configs]
                known, choice = _with_data(configs), choices[cell.row]
                of = {each: values_of(each, runs) for each in CONDITIONS[condition]}
                self._add({(cell.row, each): Line(known, choice, of[each]) for each in of})

        sweep.renew([*grid], self.console)
        for cell in grid.cells:
            keep(cell)
        cell_of = {config.run_dir: cell for cell, of in grid.cells.items() for config in of}
        return sweep.run_all(
            [*grid], self.workers, self.console, on_end=lambda of: keep(cell_of[of.run_dir])
        )


def configurations(
    problem: Problem, condition: str, method: str, settings: Mapping[str, Any]
) -> list[Config]:
    """Return the configurations of a method's runs under a condition, one per seed."""
    keys: dict[str, Scalar] = {**problem.keys, **problem.conditions[condition]}
    flat = {**tune.with_validation(keys), "method": method}
    tuned = {"learning-rate", "weight-decay", tune.grid(Config.from_flat(flat))[0]}
    if others := settings.keys() - tuned:
        raise ConfigError(f"{min(others)} is not among the tuned keys of {method}")
    made = Grid.product({method: settings}, {**flat, "seed": 0}, problem.seeds)
    check(next(iter(made)))
    return [*made]


def digest(configs: Sequence[Config]) -> str:
    """Return the digest of a cell's configurations, which differ in the seed only."""
    flat = {
        _NAMES.get(key, key): _FORMER.get((key, value), value)
        for key, value in result_keys(configs[0]).items()
        if key != "seed" and (key not in BEFORE or BEFORE[key] != value)
    }
    parts = configs[0].dataset, configs[0].method, "sam-radius", "channels-last"
    gone = {k: value for k, (value, _) in GONE.items() if k.partition(".")[0] in parts}
    if "topology-degree" in result_keys(configs[0]):  # of a random or changing graph
        gone["topology-probability"] = GONE["topology-probability"][0]
    return grid.digest(configs[0], {**flat, **gone, "seeds": [config.seed for config in configs]})


def _with_data(configs: Sequence[Config]) -> str:
    """Return `digest`, with ":" and a digest of the files that are the user's own."""
    config, problem = configs[0], problem_of(configs[0])
    if config.dataset in DATASETS and config.source.divided:
        problem = replace(problem, files=())  # public
    own = provenance.digest(provenance.content_of(config, problem)["files"])
    return f"{digest(configs)}:{own[:8]}" if own else digest(configs)


def is_of(cell: Line, configs: Sequence[Config]) -> bool:
    """Return whether a cell is of these configurations, and of these data if it says of which."""
    return cell.digest in (digest(configs), _with_data(configs))


def values_of(column: str, runs: Sequence[Run]) -> list[Any]:
    """Return the values of a cell, per seed; see `coterie.app.lab.pages.league.Line`."""
    if column == "gradients":
        means = (np.nanmean(run.last("gradient_evaluations")) for run in runs)
        return [float(np.round(mean, 1)) for mean in means]
    if column == "course":
        return [
            [np.round(run.course("bytes_sent")).tolist(), _digits(run.course("test_accuracy"))]
            for run in runs
        ]
    return [_digits(run.last()) for run in runs]


def _digits(values: Floats) -> list[float | None]:
    return [None if np.isnan(x) else round(float(x), 4) for x in values]


def repeat(
    problem: Problem, method: str, column: str, cell: Line, console: Console
) -> list[tuple[Any, Any]]:
    """Run a cell again; return the values that differ: what is kept, and what came out."""
    condition = next(name for name, of in CONDITIONS.items() if column in of)
    configs = configurations(problem, condition, method, cell.choice.settings)
    if not is_of(cell, configs):
        raise ConfigError(
            f"{method}, {column}: the configuration has changed since, or the data (digest "
            f"{_with_data(configs)}, not {cell.digest}); coterie league run measures it again"
        )
    with tempfile.TemporaryDirectory() as place:
        here = [grid.with_run_dir(config, Path(place)) for config in configs]
        report_failures(sweep.run_all(here, 1, console), console)
        values = values_of(column, [Run.read(config.run_dir) for config in here])
    pairs = zip(cell.values, values, strict=True)
    return [(kept, new) for kept, new in pairs if kept != new]
