"""`coterie compare`: run the sweep, tune if asked, and write the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app.config import parts, schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import nearest
from coterie.app.config.preflight import check, problem_of
from coterie.app.config.registry import METHODS, method_of
from coterie.app.config.schema import Scalar
from coterie.app.report import comparison, comparison_page, verdict
from coterie.app.report.measures import COLUMNS
from coterie.app.runners import sweep, tracking, tune
from coterie.app.runners.errors import SweepError
from coterie.app.runs import atomic, files, units
from coterie.app.runs.rundir import Run

_SUBJECT = "comparison.toml"
_NOT_COMPARED = ("method", "seed", "out", "name", "run-dir", "resume")


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Run the same experiment for several methods and seeds."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")
    add_options(parser)
    given = parser.parse_intermixed_args(arguments)
    preset, flat = read_items(given.items)
    if given.hold_out is not None:
        flat = {**flat, "hold-out": given.hold_out}
    run_comparison(given, preset, flat, console)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, beside preset and overrides."""
    parser.add_argument("--methods", required=True, help="names with commas, or all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from `seed` on (3)")
    parser.add_argument(
        "--tune", action="store_const", const=tune.WHOLE, help="choose settings on validation data"
    )
    parser.add_argument(
        "--halving",
        dest="tune",
        action="store_const",
        const=tune.HALVING,
        help="likewise, and bad trials end early",
    )
    parser.add_argument(
        "--hold-out", type=float, metavar="SHARE",
        help="of the peers that come for the last fifth of the rounds only, to see how they fare",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, help="runs side by side (as many as cores allow)")
    parser.add_argument("--out", help="directory of the comparison (runs/compare/<preset>)")
    usual = ",".join(comparison.IN_LATEX)
    parser.add_argument(
        "--columns", help=f"of comparison.tex: names of the CSV's, or all ({usual})"
    )


def run_comparison(
    given: argparse.Namespace, preset: str, flat: Mapping[str, Scalar], console: Console
) -> Path:
    """Everything from the flat keys of the preset to the comparison's page.

    Raises
    ------
    ConfigError, DataError : a method cannot run on this preset, or the directory holds a comparison
        of other settings; nothing was started.
    SweepError : a run failed. What the others did is kept, compared, and used by the next attempt.
    """
    for flag, value in (("--seeds", given.seeds), ("--workers", given.workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} must be at least 1")
    columns = _columns(given.columns)
    tracking.trackers(str(flat.get("track", "")))
    directory = Path(given.out or Path(str(flat.get("out", "runs")), "compare", preset))
    methods = _methods(given.methods)
    flat = _with_validation_split(flat, methods, bool(given.tune), console)
    wanted = _wanted(methods, given.methods.strip() == "all", given.seeds, flat, console)
    subject = Subject.of(wanted, flat, given.tune)
    subject.check(directory)
    settings: dict[str, tune.Settings] = {}
    failed: dict[str, str] = {}  # run directory -> why
    if given.tune:
        first = {name: configs[0] for name, configs in wanted.items()}
        settings, failed = _tuned(first, given.tune, directory, given.workers, console)
    placed = {
        name: [
            sweep.placed(Config.from_flat({**c.flat(), **settings.get(name, {})}), directory)
            for c in configs
        ]
        for name, configs in wanted.items()
        if name in settings or not given.tune
    }
    failed |= sweep.run_all(
        [c for configs in placed.values() for c in configs], given.workers, console
    )
    runs = {
        name: [Run.read(c.run_dir) for c in configs if c.run_dir not in failed]
        for name, configs in placed.items()
    }
    rows = comparison.rows({name: of for name, of in runs.items() if of}, settings)
    page = directory / "comparison.html"
    if rows:
        comparison.write(rows, directory, columns)
        console.print(comparison.table(rows, f"{preset}, {units.plural(given.seeds, 'seed')}"))
        for line in (verdict.outcome(rows), *verdict.notes(rows)):
            console.print(line, soft_wrap=True)
        why_of = {Path(run_dir).name: why for run_dir, why in failed.items()}
        page = comparison_page.write(rows, directory, preset, why_of)
        subject.write(directory)
        console.print(f"comparison: {page}", soft_wrap=True)
    for run_dir, why in failed.items():
        log = Path(run_dir, "error.log")
        where = f" (log: {log})" if log.exists() else ""
        console.print(f"failed: {Path(run_dir).name}: {why}{where}", soft_wrap=True)
    if failed:
        raise SweepError(f"{units.plural(len(failed), 'run')} failed: the same command tries again")
    return page


@dataclass(frozen=True)
class Subject:
    """What a comparison is of; it stands beside its tables, which are not written over by others.

    Attributes
    ----------
    methods, seeds : compared. tuned : whether each method chose its settings; halved : and bad
        trials ended early.
    keys : the configuration that all runs share.
    """

    methods: list[str]
    seeds: list[int]
    tuned: bool
    keys: Mapping[str, Scalar]
    halved: bool = False

    @classmethod
    def of(
        cls,
        wanted: Mapping[str, Sequence[Config]],
        flat: Mapping[str, Scalar],
        stages: tune.Stages | None,
    ) -> Subject:
        """The subject of these configurations, made from the keys `flat`."""
        seeds = [config.seed for config in next(iter(wanted.values()))]
        keys = {key: value for key, value in sorted(flat.items()) if key not in _NOT_COMPARED}
        return cls(list(wanted), seeds, bool(stages), keys, stages == tune.HALVING)

    @classmethod
    def read(cls, directory: Path) -> Subject:
        """What the comparison in a directory is of.

        Raises
        ------
        ValueError, TypeError : it does not say.
        """
        there = cls(**(files.toml_of(directory, _SUBJECT) or {}))
        kinds = list, list, bool, dict, bool
        values = there.methods, there.seeds, there.tuned, there.keys, there.halved
        if not all(map(isinstance, values, kinds)):
            raise TypeError("values of other types")
        return there

    def check(self, directory: Path) -> None:
        """Refuse a directory whose comparison has something that this one would not have.

        Raises
        ------
        ConfigError : it says what.
        """
        if not (directory / "comparison.csv").exists():
            return
        try:
            there = Subject.read(directory)
        except (ValueError, TypeError):
            raise ConfigError(
                f"{directory} holds another comparison: choose another --out"
            ) from None
        for key, value in self.keys.items():
            if there.keys.get(key) != value:
                differs = f"{key} = {schema.written(there.keys.get(key, ''))}"
                break
        else:
            lost = [name for name in there.methods if name not in self.methods]
            lost += [f"seed {seed}" for seed in there.seeds if seed not in self.seeds]
            if (there.tuned, there.halved) != (self.tuned, self.halved):
                tuned = "--tune" if there.tuned else "no --tune"
                lost = ["--halving" if there.halved else tuned]
            differs = ", ".join(lost)
        if differs:
            raise ConfigError(
                f"{directory} holds a comparison of other settings ({differs}): choose another "
                "--out, or include them"
            )

    def write(self, directory: Path) -> None:
        """Write it beside the comparison's tables."""
        atomic.write(directory / _SUBJECT, tomli_w.dumps(asdict(self)))


def _methods(text: str) -> list[str]:
    """The methods that --methods names.

    Raises
    ------
    ConfigError : one is unknown, or there is none.
    """
    if text.strip() == "all":
        return list(METHODS)
    names = list(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not names:
        raise ConfigError("there are no methods to compare")
    for name in names:
        parts.chosen({"method": name})
    return names


def _columns(text: str | None) -> Collection[str]:
    """The columns that --columns names.

    Raises
    ------
    ConfigError : one is unknown.
    """
    if text is None:
        return comparison.IN_LATEX
    known = [column.key for column in COLUMNS]
    if text.strip() == "all":
        return known
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f'--columns: unknown column "{name}"{nearest(name, known)}')
    return names


def _wanted(
    methods: Sequence[str], every: bool, seeds: int, flat: Mapping[str, Scalar], console: Console
) -> dict[str, list[Config]]:
    """Method -> a configuration for each seed. Of `every` method those that fit.

    Raises
    ------
    ConfigError, DataError : a method was asked for that cannot run, or none can.
    """
    first = int(flat.get("seed", Config.seed))
    wanted: dict[str, list[Config]] = {}
    refused: list[ConfigError] = []
    for name in methods:
        try:
            configs = [
                Config.from_flat({**flat, "method": name, "seed": seed})
                for seed in range(first, first + seeds)
            ]
            for config in configs:
                check(config)
        except ConfigError as error:
            if not every:
                raise
            refused.append(error)
        else:
            wanted[name] = configs
    if not wanted:
        raise refused[0]
    for refusal in refused:
        console.print(f"left out: {refusal}", soft_wrap=True)
    return wanted


def _with_validation_split(
    flat: Mapping[str, Scalar], methods: Sequence[str], tuned: bool, console: Console
) -> Mapping[str, Scalar]:
    """The preset with validation data for every method where one needs some, or tuning does.

    What the preset says of it stands, but for `tuned`. Says so where it changes the preset.

    Raises
    ------
    ConfigError, DataError : `tuned`, and the data set cannot set any aside.
    """
    after = tune.validating(flat)
    before, config = (Config.from_flat({**keys, "method": "local"}) for keys in (flat, after))
    key, share = config.validation
    need = [name for name in methods if method_of(name).validates]
    if tuned and not any(len(rows) for rows in problem_of(config).validation.rows):
        raise ConfigError(f"--tune chooses by validation data, which {config.dataset} has not")
    if config == before or not (tuned or (need and flat.get(key, "auto") == "auto")):
        return flat
    why = "--tune chooses" if tuned else f"{need[0]} judges models"
    console.print(f"{key} = {share} in all runs: {why} by validation data", soft_wrap=True)
    return after


def _tuned(
    configs: Mapping[str, Config],
    stages: tune.Stages,
    directory: Path,
    workers: int | None,
    console: Console,
) -> tuple[dict[str, tune.Settings], dict[str, str]]:
    """The settings that validation data chooses for each method, and why which trials failed."""
    left = {method: tune.trials(config) for method, config in configs.items()}
    done: dict[str, list[tune.Trial]] = {method: [] for method in configs}
    failed: dict[str, str] = {}
    for part, goes_on in stages:
        trials = {
            method: tune.trial_configs(configs[method], of_method, directory, part)
            for method, of_method in left.items()
        }
        every = {run_dir: of for of_method in trials.values() for run_dir, of in of_method.items()}
        labels = {
            run_dir: f"{c.method}: {tune.describe(settings)}"
            for run_dir, (settings, c) in every.items()
        }
        failed |= sweep.run_all([c for _, c in every.values()], workers, console, labels)
        for method, of_method in trials.items():
            ended = [
                (settings, Run.read(run_dir))
                for run_dir, (settings, _) in of_method.items()
                if run_dir not in failed
            ]
            done[method] += ended
            left[method] = tune.best(ended, max(1, len(ended) // goes_on))
    chosen = {method: settings[0] for method, settings in left.items() if settings}
    tune.write({method: done[method] for method in chosen}, chosen, directory / "tuning.csv")
    for method, settings in chosen.items():
        console.print(f"tuned {method}: {tune.describe(settings)}", soft_wrap=True)
    return chosen, failed
