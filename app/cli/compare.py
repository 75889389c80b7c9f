"""`python -m app compare`: run the sweep, tune if asked, and write the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from app.config.config import Config, ConfigError
from app.config.items import read_items
from app.config.keys import nearest
from app.config.preflight import check, problem_of
from app.config.registry import METHODS
from app.config.schema import Scalar
from app.report import compare, compare_page
from app.runners import sweep, tune
from app.runs import units
from app.runs.rundir import Run


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Run the same experiment for several methods and seeds."""
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")
    add_options(parser)
    given = parser.parse_intermixed_args(arguments)
    preset, flat = read_items(given.items)
    page = run_comparison(given, preset, flat, console)
    console.print(f"comparison: {page}", soft_wrap=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags, beside preset and overrides."""
    parser.add_argument("--methods", required=True, help="names with commas, or all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from `seed` on (3)")
    parser.add_argument("--tune", action="store_true", help="choose settings on validation data")
    parser.add_argument("--workers", type=int, help="runs side by side (one per core)")
    parser.add_argument("--out", help="directory of the comparison (runs/compare/<preset>)")


def run_comparison(
    given: argparse.Namespace, preset: str, flat: Mapping[str, Scalar], console: Console
) -> Path:
    """Everything from the flat keys of the preset to the comparison's page.

    Raises
    ------
    ConfigError, DataError : a method cannot run on this preset; nothing was started.
    SweepError : a run failed. What the others did is kept, and used by the next attempt.
    """
    for flag, value in (("--seeds", given.seeds), ("--workers", given.workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} must be at least 1")
    directory = Path(given.out or Path(str(flat.get("out", "runs")), "compare", preset))
    if given.tune:
        flat = _with_validation_split(flat, console)
    wanted = _wanted(given.methods, given.seeds, flat, console)
    workers = given.workers or sweep.default_workers()
    settings: dict[str, tune.Settings] = {}
    if given.tune:
        settings = _tuned({name: c[0] for name, c in wanted.items()}, directory, workers, console)
    placed = {
        name: [
            sweep.placed(Config.from_flat({**c.flat(), **settings.get(name, {})}), directory)
            for c in configs
        ]
        for name, configs in wanted.items()
    }
    sweep.run_all([c for configs in placed.values() for c in configs], workers, console)
    runs = {name: [Run.read(c.run_dir) for c in configs] for name, configs in placed.items()}
    rows = compare.rows(runs, settings)
    compare.write(rows, directory)
    title = f"{preset}, {units.plural(given.seeds, 'seed')}"
    console.print(compare.table(rows, title))
    return compare_page.write(rows, directory, preset)


def _wanted(
    methods: str, seeds: int, flat: Mapping[str, Scalar], console: Console
) -> dict[str, list[Config]]:
    """Method -> a configuration for each seed. Of "all", methods that do not fit are left out.

    Raises
    ------
    ConfigError, DataError : a method was asked for that cannot run, or none can.
    """
    first = int(flat.get("seed", Config.seed))
    wanted: dict[str, list[Config]] = {}
    refused: list[ConfigError] = []
    every = methods.strip() == "all"
    for name in METHODS if every else (each.strip() for each in methods.split(",")):
        if name not in METHODS:
            raise ConfigError(f'unknown method "{name}"{nearest(name, METHODS)}')
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


def _with_validation_split(flat: Mapping[str, Scalar], console: Console) -> Mapping[str, Scalar]:
    """The preset with validation data to choose settings by; says so where that changes it.

    Raises
    ------
    ConfigError, DataError : its data set cannot set any aside.
    """
    after = tune.validating(flat)
    before, config = (Config.from_flat({**keys, "method": "local"}) for keys in (flat, after))
    if not any(len(rows) for rows in problem_of(config).validation.rows):
        raise ConfigError(f"--tune chooses by validation data, which {config.dataset} has not")
    if config != before:
        key, share = config.validation
        console.print(
            f"{key} = {share} in all runs: --tune chooses by validation data, and the preset "
            "sets none aside",
            soft_wrap=True,
        )
    return after


def _tuned(
    configs: Mapping[str, Config], directory: Path, workers: int, console: Console
) -> dict[str, tune.Settings]:
    """The settings that validation data chooses for each method."""
    trials = {name: tune.trial_configs(config, directory) for name, config in configs.items()}
    every = {name: of for of_method in trials.values() for name, of in of_method.items()}
    labels = {
        name: f"{c.method}: {tune.describe(settings)}" for name, (settings, c) in every.items()
    }
    sweep.run_all([config for _, config in every.values()], workers, console, labels)
    done = {
        method: [(settings, Run.read(run_dir)) for run_dir, (settings, _) in of_method.items()]
        for method, of_method in trials.items()
    }
    chosen = {method: tune.chosen(of_method) for method, of_method in done.items()}
    tune.write(done, directory / "tuning.csv")
    for method, settings in chosen.items():
        console.print(f"tuned {method}: {tune.describe(settings)}", soft_wrap=True)
    return chosen
