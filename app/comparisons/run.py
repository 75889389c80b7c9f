"""Run a comparison: one experiment for each method and seed, optionally tuned, and its tables.

A sweep is a comparison of combinations of values instead of methods. The commands `compare` and
`sweep`, `coterie.compare` and `coterie.sweep` call `compare`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
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
from coterie.app.report import (
    by_peer,
    comparison,
    comparison_page,
    decisions,
    diagnostics,
    verdict,
)
from coterie.app.report.measures import COLUMNS
from coterie.app.report.tuning import Choice
from coterie.app.runners import sweep, tracking
from coterie.app.runners.errors import SweepError
from coterie.app.runs import atomic, introduction, plan, progress, units
from coterie.app.runs.rundir import Run
from coterie.app.trained import starts
from coterie.errors import line_of

ALL = "all"
_NOT_SWEPT = {"seed", "name", "out", "run-dir", "resume", "preflight", "track", "trust"}
Yardsticks = Literal["auto", "none"]
Configs = Mapping[str, Sequence[Config]]
"""Method -> its configuration for each seed."""


@dataclass(frozen=True)
class Request:
    """Request of a comparison.

    Attributes
    ----------
    title : str
        Heading of the tables.
    keys : Mapping of str to Scalar
        Flat configuration keys that all runs share.
    methods : Sequence of str
        Names of methods; `ALL`: each built-in method that can run with these keys. Empty in a
        sweep.
    seeds : int
        Number of seeds, consecutive from the key `seed`.
    tuning : Tuning or None
        Procedure that chooses each method's settings; None: the keys set them.
    workers : int or None
        Maximum number of parallel runs; None: as many as cores, memory and GPUs allow.
    directory : Path
        Directory of the comparison.
    columns : Sequence of str or None
        Keys of the columns of comparison.tex; `ALL`: every column; None: the default ones.
    settings : Mapping of str to Mapping of str to Scalar
        Keys of single methods, by method.
    sweep : Mapping of str to Sequence of Scalar
        Values of keys: a row per combination, instead of one per method. A combination lists only
        the keys that its method and data use.
    yardsticks : {"auto", "none"}
        "auto" adds rows by scikit-learn where the data are a table with a class or a number to
        predict.
    """

    title: str
    keys: Mapping[str, Scalar]
    methods: Sequence[str]
    directory: Path
    seeds: int = 3
    tuning: Tuning | None = None
    workers: int | None = None
    columns: Sequence[str] | None = None
    settings: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    yardsticks: Yardsticks = "auto"


def compare(request: Request, console: Console) -> Path:
    """Run a comparison and write its tables and its page; return the path of the page.

    Raises
    ------
    ConfigError, DataError
        A method cannot run with these keys, or the directory holds another comparison; nothing was
        started.
    SweepError
        A run failed; the cause is its error. Finished runs are compared, and are not repeated by
        the next attempt.
    """
    for name, value in (("seeds", request.seeds), ("workers", request.workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: must be at least 1")
    columns = _columns(request.columns)
    tracking.trackers(str(request.keys.get("track", "")))
    is_all = [name.strip() for name in request.methods] == [ALL]
    swept = _combinations(request) if request.sweep else {}
    if not request.sweep:
        request = replace(request, methods=_methods(request.methods))
        _check_settings(request)
    own = _own_keys(request, swept)
    flat = _with_validation_split(request, own, console)
    configs = _configs(request, flat, own, is_all, console)
    first = next(iter(configs.values()))[0]
    introduction.data_quality(problem_of(first), console)
    subject = Subject.of(configs, flat, request.tuning, own if swept else request.settings)
    subject.check(request.directory)
    choices, failed = _choices(request, configs, console)
    placed = _placed(request, configs, choices) | _yardsticks(request, flat, configs)
    failed |= sweep.run_all(
        [config for of_method in placed.values() for config in of_method], request.workers, console,
        values={Path(c.run_dir).name: swept[label] for label in swept for c in placed[label]},
    )  # fmt: skip
    runs = {
        name: [Run.read(config.run_dir) for config in of_method if config.run_dir not in failed]
        for name, of_method in placed.items()
    }
    rows = comparison.rows({name: of for name, of in runs.items() if of}, choices, swept)
    page = request.directory / "comparison.html"
    if rows:
        subject.write(request.directory)
        comparison.write(rows, request.directory, columns)
        atomic.write(request.directory / by_peer.FILE, by_peer.as_csv(rows))
        if table := diagnostics.as_csv(rows):
            atomic.write(request.directory / diagnostics.FILE, table)
        decided = decisions.compared(rows)
        if decided is not None:
            atomic.write(request.directory / decisions.FILE, decided.as_csv())
        page = comparison_page.write(rows, request.directory, request.title, _lines(failed))
        _show(rows, decided, request, page, console)
    report_failures(failed, console)
    return page


def _methods(names: Sequence[str]) -> list[str]:
    """Return the names of the methods, each once.

    Raises
    ------
    ConfigError
        A name is unknown, or `names` is empty.
    """
    if [name.strip() for name in names] == [ALL]:
        return list(METHODS)
    unique = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not unique:
        raise ConfigError("there are no methods to compare")
    for name in unique:
        parts.chosen({"method": name})
    return unique


def _method(request: Request) -> str:
    return str(request.keys.get("method", Config.method))


def _own_keys(
    request: Request, swept: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, dict[str, Scalar]]:
    """Return row -> the keys in which it differs from others, and its method."""
    if swept:
        return {label: {"method": _method(request), **values} for label, values in swept.items()}
    return {name: {**request.settings.get(name, {}), "method": name} for name in request.methods}


def _combinations(request: Request) -> dict[str, dict[str, Scalar]]:
    """Return label -> swept values of each combination that differs from the others.

    Raises
    ------
    ConfigError
        A combination is invalid, or a key has no effect on any run.
    """
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


def _check_settings(request: Request) -> None:
    """Check the settings of single methods.

    Raises
    ------
    ConfigError
        The settings name a method that is not compared, or a key that all methods share.
    """
    for method, keys in request.settings.items():
        if method not in request.methods:
            hint = nearest(method, request.methods)
            raise ConfigError(f'settings of "{method}", which is not compared{hint}')
        for key in ("method", "seed"):
            if key in keys:
                raise ConfigError(f"{key} cannot be set for {method} alone")
        recipes.check(method, keys)


def _columns(names: Sequence[str] | None) -> Collection[str]:
    """Return the keys of the columns of comparison.tex.

    Raises
    ------
    ConfigError
        A column is unknown.
    """
    if names is None:
        return comparison.IN_LATEX
    known = [column.key for column in COLUMNS]
    wanted = [name.strip() for name in names]
    if wanted == [ALL]:
        return known
    for name in wanted:
        if name not in known:
            raise ConfigError(f'columns: unknown column "{name}"{nearest(name, known)}')
    return wanted


def _with_validation_split(
    request: Request, own: Mapping[str, Mapping[str, Scalar]], console: Console
) -> Mapping[str, Scalar]:
    """Return the keys, with validation data for all methods if one needs some or tuning does.

    A share that the keys set stays, except a share of 0 under tuning. Prints the changes.

    Raises
    ------
    ConfigError, DataError
        Tuning needs validation data, but the data set cannot set any aside.
    """
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


def _configs(
    request: Request,
    flat: Mapping[str, Scalar],
    own: Mapping[str, Mapping[str, Scalar]],
    is_all: bool,
    console: Console,
) -> dict[str, list[Config]]:
    """Return the configurations of each row; of all methods, those that can run.

    Parameters
    ----------
    own : Mapping of str to Mapping of str to Scalar
        Keys of each row, which override those of the request.

    Raises
    ------
    ConfigError, DataError
        A method that the user named cannot run, or no method can.
    """
    first = int(flat.get("seed", Config.seed))
    configs: dict[str, list[Config]] = {}
    refused: list[ConfigError] = []
    for name, keys in own.items():
        try:
            of_method = [
                Config.from_flat({**flat, **keys, "seed": seed})
                for seed in range(first, first + request.seeds)
            ]
            for config in of_method:
                starts.check(config, check(config))
        except ConfigError as error:
            if not is_all:
                raise
            refused.append(error)
        else:
            configs[name] = of_method
    if not configs:
        raise refused[0]
    for refusal in refused:
        console.print(f"left out: {refusal}", soft_wrap=True)
    return configs


def _choices(
    request: Request, configs: Configs, console: Console
) -> tuple[dict[str, Choice], dict[str, Exception]]:
    """Tune the methods on the first seed if requested; return the choices and the failed trials."""
    if request.tuning is None:
        return {}, {}
    first = {name: of_method[0] for name, of_method in configs.items()}
    return tune.tuned(first, request.tuning, request.directory, request.workers, console)


def _placed(
    request: Request, configs: Configs, choices: Mapping[str, Choice]
) -> dict[str, list[Config]]:
    """Return the configurations with their choices and run directories; untuned ones as they are.

    A method of which every tuning trial failed is left out.
    """
    if request.tuning is not None:
        configs = {
            name: [Config.from_flat({**c.flat(), **choice.settings}) for c in configs[name]]
            for name, choice in choices.items()
        }
    return {
        name: [sweep.placed(config, request.directory) for config in of_method]
        for name, of_method in configs.items()
    }


def _yardsticks(
    request: Request, flat: Mapping[str, Scalar], configs: Configs
) -> dict[str, list[Config]]:
    """Return the placed configurations of scikit-learn's models; none where they do not apply."""
    first = next(iter(configs.values()))
    problem = problem_of(first[0])
    linear = {"classification": "logistic", "regression": "ridge"}.get(problem.task)
    if request.yardsticks == "none" or request.sweep or problem.table is None or linear is None:
        return {}
    keys = {key: value for key, value in flat.items() if key != "recipe"}
    try:
        return {
            name: [
                sweep.placed(
                    Config.from_flat({**keys, "method": name, "seed": config.seed}),
                    request.directory,
                )
                for config in first
            ]
            for name in (linear, f"{linear}-pooled", "forest", "forest-pooled")
            if name not in configs
        }
    except ConfigError:  # no yardstick under privacy
        return {}


def _lines(failed: Mapping[str, Exception]) -> dict[str, str]:
    """Map the name of each failed run to its error in one line."""
    return {Path(run_dir).name: line_of(error) for run_dir, error in failed.items()}


def _show(
    rows: Sequence[comparison.Row],
    decided: decisions.Decisions | None,
    request: Request,
    page: Path,
    console: Console,
) -> None:
    """Print the decisions, the table, the verdict, notes, and the path of the page."""
    if decided is not None:
        for line in [*decided.lines(), f"Consortium: {' '.join(decided.consortium)}"]:
            console.print(line, soft_wrap=True, markup=False)
    seeds = units.plural(request.seeds, "seed")
    console.print(comparison.table(rows, f"{request.title}, {seeds}"))
    for line in (verdict.outcome(rows), *verdict.notes(rows)):
        console.print(line, soft_wrap=True)
    console.print(comparison.costs(rows))
    for line in verdict.cost_notes(rows):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"comparison: {page}", soft_wrap=True)


def report_failures(failed: Mapping[str, Exception], console: Console) -> None:
    """Print the failed runs with their logs.

    Raises
    ------
    SweepError
        A run failed.
    """
    for run_dir, error in failed.items():
        log = Path(run_dir, progress.ERROR_LOG)
        where = f" (traceback: {log})" if log.exists() else ""
        console.print(f"failed: {Path(run_dir).name}: {line_of(error)}{where}", soft_wrap=True)
    if failed:
        count = units.plural(len(failed), "run")
        first = next(iter(failed.values()))
        raise SweepError(f"{count} failed; the same command tries them again") from first
