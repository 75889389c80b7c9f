"""Run a comparison (methods) or a sweep (values), optionally tuned, and make its tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from coterie.app.comparisons import tune
from coterie.app.comparisons.subject import Subject
from coterie.app.comparisons.tune import Tuning
from coterie.app.config import parts, recipes
from coterie.app.config.config import Config, ConfigError, needs_validation
from coterie.app.config.keys import nearest
from coterie.app.config.preflight import check, problem_of
from coterie.app.config.registry import METHODS, method_of
from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.grid import Grid, Keys
from coterie.app.experiments.paired import MIN_SEEDS, TABLE_SEEDS
from coterie.app.experiments.table import Cell, Table
from coterie.app.report import comparison, comparison_page
from coterie.app.runners import sweep, tracking
from coterie.app.runs import header, plan, progress, units
from coterie.app.trained import starts
from coterie.datasets.table import forget_plugins
from coterie.errors import SweepError, line_of

ALL = "all"
_NOT_SWEPT = {"seed", "name", "title", "out", "run-dir", "resume", "preflight", "track", "trust"}
Baselines = Literal["auto", "none"]


@dataclass(frozen=True)
class ComparisonRequest:
    """Rows, seeds, tuning and place of a comparison."""

    title: str  # heading of the tables
    keys: Mapping[str, Scalar]  # flat configuration keys that all runs share
    methods: Sequence[str]
    """Names; `ALL`: each built-in method that can run with these keys; empty in a sweep."""
    directory: Path
    seeds: int | None = None
    """Number of seeds, consecutive from the key `seed`; None: 3, of tables 10."""
    tuning: Tuning | None = None  # chooses each method's settings; None: the keys set them
    workers: int | None = None
    """Maximum number of parallel runs; None: as many as cores, memory and GPUs allow."""
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    """Keys of single methods, by method."""
    sweep: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    """Values of keys: a row per combination, instead of one per method. A combination lists only
    the keys that its method and data use."""
    yardsticks: Baselines = "auto"
    """With "auto", add rows by scikit-learn where the data are a table with a class or a number to
    predict."""
    numbered: bool = False
    """Take NAME-2, NAME-3, ... if the directory has a comparison of other settings, which is
    refused otherwise."""
    command: str = ""
    """Command that tunes these methods, for the last line of an untuned comparison."""


def compare(request: ComparisonRequest, console: Console) -> Path:
    """Run a comparison and write its tables and its page; return the path of the page."""
    # After a ConfigError or DataError nothing was started; after a SweepError finished runs are
    # compared, and are not repeated by the next attempt.
    for name, value in (("seeds", request.seeds), ("workers", request.workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: must be at least 1")
    forget_plugins()
    tracking.trackers(str(request.keys.get("track", "")))
    is_all = [name.strip() for name in request.methods] == [ALL]
    swept = _combinations(request) if request.sweep else {}
    if not request.sweep:
        request = replace(request, methods=_methods(request.methods))
        _check_settings(request)
    own = {label: {"method": _method(request), **values} for label, values in swept.items()}
    own = own or {
        each: {**request.settings.get(each, {}), "method": each} for each in request.methods
    }
    flat = _with_validation_split(request, own, console)
    if request.seeds is None:
        data = problem_of(Config.from_flat({**flat, "method": "local"}))
        request = replace(request, seeds=MIN_SEEDS if data.table is None else TABLE_SEEDS)
    grid = _grid(request, flat, own, is_all, console)
    header.data_quality(problem_of(next(iter(grid))), console)
    configs = {cell.row: of for cell, of in grid.cells.items()}
    subject = Subject.of(configs, flat, request.tuning, own if swept else request.settings)
    if request.numbered:
        request = replace(request, directory=subject.place(request.directory))
    subject.check(request.directory)
    choices, failed = dict[str, Choice](), dict[str, Exception]()
    if request.tuning is not None:
        first = {row: of[0] for row, of in configs.items()}
        choices, failed = tune.tuned(
            first, request.tuning, request.directory, request.workers, console
        )
    chosen = grid.with_keys({row: choice.settings for row, choice in choices.items()})
    chosen = (grid if request.tuning is None else chosen) | _baselines(request, flat, grid, console)
    chosen = chosen.with_run_dir(request.directory)
    values = {Path(c.run_dir).name: swept[row] for row in swept for c in chosen.cells[Cell(row)]}
    failed |= sweep.run_all([*chosen], request.workers, console, values=values)
    table = Table(chosen.results(failed), choices, swept)
    page = request.directory / "comparison.html"
    if table.rows:
        subject.write(request.directory)
        errors = {Path(run_dir).name: line_of(error) for run_dir, error in failed.items()}
        compared = comparison.Comparison(table, request.title, errors)
        made = comparison_page.page(compared)
        page = made.write(request.directory)
        made.show(console)
        console.print(f"comparison: {page}", soft_wrap=True)
        if request.command:
            console.print(_untuned(flat, request.command), soft_wrap=True)
    report_failures(failed, console)
    return page


def _methods(names: Sequence[str]) -> list[str]:
    if [name.strip() for name in names] == [ALL]:
        return list(METHODS)
    unique = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not unique:
        raise ConfigError("there are no methods to compare")
    for name in unique:
        parts.chosen({"method": name})
    return unique


def _method(request: ComparisonRequest) -> str:
    return str(request.keys.get("method", Config.method))


def _combinations(request: ComparisonRequest) -> dict[str, dict[str, Scalar]]:
    """Return label -> swept values of each combination; ConfigError: invalid, or without effect."""
    if reserved := request.sweep.keys() & _NOT_SWEPT:
        raise ConfigError(f"{min(reserved)} cannot be swept; --seeds repeats every setting")
    combinations: dict[str, dict[str, Scalar]] = {}
    for values in itertools.product(*request.sweep.values()):
        keys = dict(zip(request.sweep, values, strict=True))
        used = Config.from_flat({**request.keys, **keys}).flat()
        fixed = recipes.keys_of(used.get("recipe"))
        own = {key: keys[key] for key in keys if key == "method" or key in used.keys() - fixed}
        combinations[plan.label(_method(request), own)] = own
    for key in request.sweep:
        if not any(key in own for own in combinations.values()):
            raise ConfigError(
                f"{key} has no effect on these runs: their method or data ignores it, or a recipe "
                "sets it"
            )
    return combinations


def _check_settings(request: ComparisonRequest) -> None:
    """Refuse settings of methods that are not compared, and of keys that all methods share."""
    for method, keys in request.settings.items():
        if method not in request.methods:
            hint = nearest(method, request.methods)
            raise ConfigError(f'settings of "{method}", which is not compared{hint}')
        for key in ("method", "seed"):
            if key in keys:
                raise ConfigError(f"{key} cannot be set for {method} alone")
        recipes.check(method, keys)


def _with_validation_split(
    request: ComparisonRequest, own: Mapping[str, Mapping[str, Scalar]], console: Console
) -> Mapping[str, Scalar]:
    """Return the keys, with validation data for all methods if one needs some or tuning does."""
    # A share that the keys set stays, except a share of 0 under tuning.
    flat, after = request.keys, tune.with_validation(request.keys)
    before, config = (Config.from_flat({**keys, "method": "local"}) for keys in (flat, after))
    key, share = config.validation
    methods = dict.fromkeys(str(keys["method"]) for keys in own.values())
    need = [
        name
        for name in methods
        if needs_validation(method_of(parts.chosen({"method": name})["method"]), config.network)
    ]
    is_tuned = request.tuning is not None
    if is_tuned and not any(len(rows) for rows in problem_of(config).validation.rows):
        raise ConfigError(f"--tune needs validation data, which {config.dataset} cannot set aside")
    if config == before or not (is_tuned or (need and flat.get(key, "auto") == "auto")):
        return flat
    if request.sweep and (len(methods) == 1 or key in request.sweep):
        return flat  # every run has what its method needs
    why = "--tune needs" if is_tuned else f"{need[0]} needs"
    console.print(f"{key} = {share} in all runs: {why} validation data", soft_wrap=True)
    return after


def _grid(
    request: ComparisonRequest, flat: Keys, own: Mapping[str, Keys], is_all: bool, console: Console
) -> Grid:
    """Return the configurations of the rows, whose keys are `own`; of all, those that can run."""
    grid, refused = Grid({}), list[ConfigError]()
    for name, keys in own.items():
        try:
            row = Grid.product({name: keys}, flat, request.seeds or MIN_SEEDS)
            for config in row:
                starts.check(config, check(config))
        except ConfigError as error:
            if not is_all:
                raise
            refused.append(error)
        else:
            grid |= row
    if not grid.cells:
        raise refused[0]
    for refusal in refused:
        console.print(f"left out: {refusal}", soft_wrap=True)
    return grid


def _baselines(request: ComparisonRequest, flat: Keys, grid: Grid, console: Console) -> Grid:
    """Return the configurations of the yardsticks; none where they do not apply."""
    problem = problem_of(next(iter(grid)))
    linear = {"classification": "logistic", "regression": "ridge"}.get(problem.task)
    if request.yardsticks == "none" or request.sweep or problem.table is None or linear is None:
        return Grid({})
    keys = {key: value for key, value in flat.items() if key != "recipe"}
    names = linear, f"{linear}-pooled", "mixed"
    rows = {name: {"method": name} for name in names if Cell(name) not in grid.cells}
    try:
        return _grid(request, keys, rows, True, console)
    except ConfigError:  # no baseline under privacy
        return Grid({})


def _untuned(flat: Mapping[str, Scalar], command: str) -> str:
    """Say that nothing was tuned, and by which command it would be if there are validation rows."""
    config = Config.from_flat({**tune.with_validation(flat), "method": "local"})
    can_tune = any(map(len, problem_of(config).validation.rows))
    remedy = f"; to tune each on validation data: {command}" if can_tune else ""
    return f"not tuned: every method ran with the same settings, which suit some better{remedy}"


def report_failures(failed: Mapping[str, Exception], console: Console) -> None:
    """Print the failed runs with their logs, and raise SweepError if there are any."""
    for run_dir, error in failed.items():
        log = Path(run_dir, progress.ERROR_LOG)
        where = f" (traceback: {log})" if log.exists() else ""
        console.print(f"failed: {Path(run_dir).name}: {line_of(error)}{where}", soft_wrap=True)
    if failed:
        count = units.plural(len(failed), "run")
        first = next(iter(failed.values()))
        raise SweepError(f"{count} failed; the same command tries them again") from first
