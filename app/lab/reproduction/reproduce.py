"""Make a table or figure of a paper: run missing runs, judge the claims, write the page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console

from coterie.app.comparisons.run import report_failures
from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.experiments.grid import Grid, Point, with_run_dir
from coterie.app.experiments.table import Table
from coterie.app.lab.reproduction import claims, figures, page
from coterie.app.lab.reproduction.claims import Verdict
from coterie.app.lab.reproduction.figures import DEFAULTS, Figure, Panel, Paper, Size
from coterie.app.lab.reproduction.results import Numbers
from coterie.app.runners import cluster, sweep
from coterie.app.runs import atomic
from coterie.datasets.problem import DataError

OUT = "runs/reproduce"


@dataclass(frozen=True)
class FigureRequest:
    """Figure to reproduce, its size, and where."""

    name: str  # "paper/figure"
    size: Size = "small"
    seeds: int | None = None  # number of seeds, from 0; None: those that the figure sets
    out: Path = Path(OUT)  # directory of all reproductions; figures share equal runs
    workers: int | None = None
    """Maximum number of parallel runs; None: as many as cores, memory and GPUs allow."""
    panels: tuple[str, ...] = ()  # labels of the panels to make; empty: every panel

    @property
    def directory(self) -> Path:
        """Directory of the figure: its page, results.csv, seeds.csv and claims.json."""
        return self.out / self.size / self.name


@dataclass(frozen=True)
class Reproduction:
    """A figure that was made."""

    paper: Paper
    figure: Figure
    size: Size
    directory: Path  # of page.html, figure.svg, results.csv, seeds.csv, claims.json and made.json
    results: Table
    numbers: Numbers
    verdicts: tuple[Verdict, ...]


def reproduce(request: FigureRequest, console: Console) -> Reproduction:
    """Make one figure. Runs that are finished are reused, stopped ones are continued."""
    # After a ConfigError or DataError nothing was started; after a SweepError finished runs stay.
    paper, figure = figures.find(request.name)
    if figure.missing:
        raise ConfigError(f"{request.name} is not reproduced: {figure.missing}")
    figure = figure.only(request.panels)
    if not figure.exists(request.size):
        (other,) = {*get_args(Size)} - {request.size}
        raise ConfigError(f"{request.name} has no size {request.size}; use --size {other}")
    bases = [_base(panel, request) for panel in figure.panels if panel.base]
    if bases and request.size == "small":
        report_failures(sweep.run_all(bases, request.workers, console), console)
    grid = _grid(figure, request)
    _require(figure, request, grid)
    report_failures(sweep.run_all([*grid], request.workers, console), console)
    results = Table(grid.results())
    numbers = Numbers.of(figure, results)
    verdicts = tuple(claims.judge(figure, request.size, numbers))
    made = Reproduction(paper, figure, request.size, request.directory, results, numbers, verdicts)
    request.directory.mkdir(parents=True, exist_ok=True)
    page.write(made)
    text = json.dumps([asdict(verdict) for verdict in verdicts], indent=1)
    atomic.write(request.directory / "claims.json", text)
    atomic.write(request.directory / "made.json", json.dumps(_effort(made), indent=1))
    return made


def _effort(made: Reproduction) -> dict[str, object]:
    """Return size, seeds, and the minutes that the runs took, added up: content of made.json."""
    runs = {run.directory: run for of in made.results.results.values() for run in of.values()}
    seconds = sum(float(run.progress.get("seconds") or 0.0) for run in runs.values())
    return {
        "size": made.size,
        "seeds": page.seeds(made.results),
        "runs": len(runs),
        "minutes": round(seconds / 60, 2),
    }


def _base(panel: Panel, request: FigureRequest) -> Config:
    _, flat = read_items([panel.base])
    return with_run_dir(Config.from_flat(flat), request.out / "runs")


def _grid(figure: Figure, request: FigureRequest) -> Grid:
    seeds = figure.seeds_at(request.size) if request.seeds is None else range(request.seeds)
    if not seeds:
        raise ConfigError(f"--seeds {request.seeds}: must be at least 1")
    splits = figure.splits if request.size == "paper" else 1
    grid = Grid({})
    for panel in figure.panels:
        preset = panel.preset(request.size)
        if not preset:
            continue
        _, shared = read_items([] if preset == DEFAULTS else [preset])
        if panel.base and request.size == "small":
            model = Path(_base(panel, request).run_dir, "models", "peer-0000.safetensors")
            shared[panel.base_key] = str(model)
        shared |= panel.overrides(request.size)
        for row in figure.rows:
            own = {row.label: row.overrides(request.size)}
            try:
                points = figure.sweep(request.size) or [Point()]
                grid |= Grid.product(
                    own, shared, seeds, panel=panel.label, points=points, splits=splits
                )
            except ConfigError as error:
                raise ConfigError(f"{request.name}, {row.label}: {error}") from None
    return grid.with_run_dir(request.out / "runs")


def _require(figure: Figure, request: FigureRequest, grid: Grid) -> None:
    """Refuse to start without the data or the GPU; the message names which."""
    if request.size == "paper" and "a GPU" in figure.required and not cluster.here("auto").gpus:
        needs = ", ".join(figure.required)
        raise ConfigError(f"{request.name} at size paper needs {needs}: no GPU is visible here")
    for configs in grid.cells.values():
        try:
            preflight.check(configs[0])
        except DataError as error:
            raise DataError(f"{request.name} at size {request.size}: {error}") from None
