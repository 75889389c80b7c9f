"""Run a comparison: one experiment for each method and seed, optionally tuned, and its tables.

The command `compare` and `coterie.compare` both call `compare`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from coterie.app.comparisons import tune
from coterie.app.comparisons.subject import Subject
from coterie.app.comparisons.tune import Tuning
from coterie.app.config import parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import nearest
from coterie.app.config.preflight import check, problem_of
from coterie.app.config.registry import METHODS, method_of
from coterie.app.config.schema import Scalar
from coterie.app.report import by_peer, comparison, comparison_page, verdict
from coterie.app.report.measures import COLUMNS
from coterie.app.report.tuning import Choice
from coterie.app.runners import sweep, tracking
from coterie.app.runners.errors import SweepError
from coterie.app.runs import atomic, progress, units
from coterie.app.runs.rundir import Run
from coterie.errors import line_of

ALL = "all"
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
        Names of methods; `ALL`: each built-in method that can run with these keys.
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
    request = replace(request, methods=_methods(request.methods))
    _check_settings(request)
    flat = _with_validation_split(request, console)
    configs = _configs(request, flat, is_all, console)
    subject = Subject.of(configs, flat, request.tuning, request.settings)
    subject.check(request.directory)
    choices, failed = _choices(request, configs, console)
    placed = _placed(request, configs, choices)
    failed |= sweep.run_all(
        [config for of_method in placed.values() for config in of_method], request.workers, console
    )
    runs = {
        name: [Run.read(config.run_dir) for config in of_method if config.run_dir not in failed]
        for name, of_method in placed.items()
    }
    rows = comparison.rows({name: of for name, of in runs.items() if of}, choices)
    page = request.directory / "comparison.html"
    if rows:
        comparison.write(rows, request.directory, columns)
        atomic.write(request.directory / by_peer.FILE, by_peer.as_csv(rows))
        page = comparison_page.write(rows, request.directory, request.title, _lines(failed))
        subject.write(request.directory)
        _show(rows, request, page, console)
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


def _with_validation_split(request: Request, console: Console) -> Mapping[str, Scalar]:
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
    need = [name for name in request.methods if method_of(name).validates]
    is_tuned = request.tuning is not None
    if is_tuned and not any(len(rows) for rows in problem_of(config).validation.rows):
        raise ConfigError(f"--tune needs validation data, which {config.dataset} cannot set aside")
    if config == before or not (is_tuned or (need and flat.get(key, "auto") == "auto")):
        return flat
    why = "--tune needs" if is_tuned else f"{need[0]} needs"
    console.print(f"{key} = {share} in all runs: {why} validation data", soft_wrap=True)
    return after


def _configs(
    request: Request, flat: Mapping[str, Scalar], is_all: bool, console: Console
) -> dict[str, list[Config]]:
    """Return the configurations of each method; of all methods, those that can run.

    Raises
    ------
    ConfigError, DataError
        A method that the user named cannot run, or no method can.
    """
    first = int(flat.get("seed", Config.seed))
    configs: dict[str, list[Config]] = {}
    refused: list[ConfigError] = []
    for name in request.methods:
        try:
            of_method = [
                Config.from_flat(
                    {**flat, **request.settings.get(name, {}), "method": name, "seed": seed}
                )
                for seed in range(first, first + request.seeds)
            ]
            for config in of_method:
                check(config)
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


def _lines(failed: Mapping[str, Exception]) -> dict[str, str]:
    """Map the name of each failed run to its error in one line."""
    return {Path(run_dir).name: line_of(error) for run_dir, error in failed.items()}


def _show(rows: Sequence[comparison.Row], request: Request, page: Path, console: Console) -> None:
    """Print the table, the verdict, notes, and the path of the page."""
    seeds = units.plural(request.seeds, "seed")
    console.print(comparison.table(rows, f"{request.title}, {seeds}"))
    for line in (verdict.outcome(rows), *verdict.notes(rows)):
        console.print(line, soft_wrap=True)
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
