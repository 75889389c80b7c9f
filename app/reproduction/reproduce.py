"""Make a table or figure of a paper: run missing runs, judge the claims, write the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console

from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.schema import Scalar
from coterie.app.reproduction import claims, figures, page
from coterie.app.reproduction.claims import Verdict
from coterie.app.reproduction.figures import Figure, Panel, Paper, Size
from coterie.app.reproduction.results import Place, Results, Trial
from coterie.app.runners import cluster, sweep
from coterie.app.runners.errors import SweepError
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Run
from coterie.datasets.problem import DataError

OUT = "runs/reproduce"
DEFAULTS = "default"
"""Instead of a preset: the default configuration."""


@dataclass(frozen=True)
class Request:
    """Request of a reproduction.

    Attributes
    ----------
    name : str
        Name as "paper/figure".
    size : Size
        Size, "small" or "paper".
    seeds : int or None
        Number of seeds; None: the number that the figure sets.
    out : Path
        Directory of all reproductions; figures share equal runs.
    workers : int or None
        Maximum number of parallel runs; None: as many as cores, memory and GPUs allow.
    """

    name: str
    size: Size = "small"
    seeds: int | None = None
    out: Path = Path(OUT)
    workers: int | None = None

    @property
    def directory(self) -> Path:
        """Directory of the figure: its page, results.csv and claims.json."""
        return self.out / self.size / self.name


@dataclass(frozen=True)
class Reproduction:
    """A figure that was made.

    Attributes
    ----------
    paper : Paper
        Paper of the figure.
    figure : Figure
        Figure that was reproduced.
    size : Size
        Size of the reproduction.
    directory : Path
        Directory of page.html, figure.svg, results.csv, claims.json and made.json.
    results : Results
        Results of the runs.
    verdicts : tuple of Verdict
        Verdict on each claim.
    """

    paper: Paper
    figure: Figure
    size: Size
    directory: Path
    results: Results
    verdicts: tuple[Verdict, ...]


def reproduce(request: Request, console: Console) -> Reproduction:
    """Make one figure. Runs that are finished are reused, stopped ones are continued.

    Raises
    ------
    ConfigError, DataError
        There is no such figure, it is not reproduced at this size, or data or a GPU are missing;
        nothing was started.
    SweepError
        A run failed. Finished runs are not run again by the next attempt.
    """
    paper, figure = figures.find(request.name)
    if figure.missing:
        raise ConfigError(f"{request.name} is not reproduced: {figure.missing}")
    if not figure.exists(request.size):
        (other,) = {*get_args(Size)} - {request.size}
        raise ConfigError(f"{request.name} has no size {request.size}; use --size {other}")
    _run_bases(figure, request, console)
    configs = dict(_configs(figure, request))
    _require(figure, request, configs.values())
    flat = [config for of_place in configs.values() for config in of_place]
    failed = sweep.run_all(flat, request.workers, console)
    if failed:
        run, why = next(iter(failed.items()))
        count = f"{len(failed)} of {len(flat)} runs of {request.name}"
        raise SweepError(f"{count} failed: {run}: {why}")
    results = Results(
        {
            place: {
                Trial(config.division, config.seed): Run.read(config.run_dir) for config in of_place
            }
            for place, of_place in configs.items()
        }
    )
    verdicts = tuple(claims.judge(figure, request.size, results))
    made = Reproduction(paper, figure, request.size, request.directory, results, verdicts)
    request.directory.mkdir(parents=True, exist_ok=True)
    page.write(made)
    text = json.dumps([asdict(verdict) for verdict in verdicts], indent=1)
    atomic.write(request.directory / "claims.json", text)
    atomic.write(request.directory / "made.json", json.dumps(_effort(made), indent=1))
    return made


def _effort(made: Reproduction) -> dict[str, object]:
    """Return size, seeds, and the minutes that the runs took, added up: content of made.json."""
    runs = {run.directory: run for of in made.results.runs.values() for run in of.values()}
    seconds = sum(float(run.progress.get("seconds") or 0.0) for run in runs.values())
    return {
        "size": made.size,
        "seeds": page.seeds(made.results),
        "runs": len(runs),
        "minutes": round(seconds / 60, 2),
    }


def _run_bases(figure: Figure, request: Request, console: Console) -> None:
    """Run the presets that panels start from."""
    bases = [_base(panel, request) for panel in figure.panels if panel.base]
    if bases and request.size == "small":
        failed = sweep.run_all(bases, request.workers, console)
        if failed:
            run, why = next(iter(failed.items()))
            raise SweepError(f"the base model of {request.name} failed: {run}: {why}")


def _base(panel: Panel, request: Request) -> Config:
    _, flat = read_items([panel.base])
    return sweep.placed(Config.from_flat(flat), request.out / "runs")


def _configs(figure: Figure, request: Request) -> Iterator[tuple[Place, list[Config]]]:
    """Yield the placed configurations of each place, one for each trial.

    Raises
    ------
    ConfigError
        A key of the figure is unknown or has a wrong value.
    """
    runs = request.out / "runs"
    number = figure.seeds if request.seeds is None else request.seeds
    if number < 1:
        raise ConfigError(f"--seeds {number}: must be at least 1")
    splits = figure.splits if request.size == "paper" else 1
    for panel in figure.panels:
        preset = panel.preset(request.size)
        if not preset:
            continue
        _, shared = read_items([] if preset == DEFAULTS else [preset])
        if panel.base and request.size == "small":
            model = Path(_base(panel, request).run_dir, "models", "peer-0000.safetensors")
            shared[panel.base_key] = str(model)
        for row in figure.rows:
            for point in figure.sweep(request.size) or (None,):
                flat: dict[str, Scalar] = {
                    **shared,
                    **panel.overrides(request.size),
                    **row.overrides(request.size),
                }
                if point is not None:
                    flat |= point.keys
                try:
                    of_place = [
                        sweep.placed(Config.from_flat({**flat, **trial}), runs)
                        for trial in _trials(int(flat.get("seed", 0)), number, splits)
                    ]
                except ConfigError as error:
                    raise ConfigError(f"{request.name}, {row.label}: {error}") from None
                x = None if point is None else point.x
                yield Place(panel.label, row.label, x), of_place


def _trials(first: int, seeds: int, splits: int) -> Iterator[dict[str, Scalar]]:
    """Yield the keys of each trial: every seed with every split, or a split per seed."""
    for seed in range(first, first + seeds):
        if splits == 1:
            yield {"seed": seed}
            continue
        for split in range(first, first + splits):
            yield {"seed": seed, "split-seed": split}


def _require(figure: Figure, request: Request, configs: Iterable[list[Config]]) -> None:
    """Check that data and GPU are available.

    Raises
    ------
    ConfigError, DataError
        Data or a GPU are missing; the message names which.
    """
    if request.size == "paper" and "a GPU" in figure.needs and not cluster.here("auto").gpus:
        needs = ", ".join(figure.needs)
        raise ConfigError(f"{request.name} at size paper needs {needs}: no GPU is visible here")
    for of_place in configs:
        try:
            preflight.check(of_place[0])
        except DataError as error:
            raise DataError(f"{request.name} at size {request.size}: {error}") from None
