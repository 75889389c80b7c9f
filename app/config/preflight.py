"""Before a run: everything that can be wrong is found while nothing has been written yet."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.config.config import Config, ConfigError
from clients.models.options import check_task
from datasets.problem import Problem
from datasets.table import DATASETS, load_problem

ROWS = 20


def problem_of(config: Config, peer: int | None = None) -> Problem:
    """What the peers of a run learn from.

    Parameters
    ----------
    peer : of a deployed node, which may hold its own data only.

    Raises
    ------
    DataError : the data set or its partition cannot be had.
    """
    deployed = DATASETS[config.dataset].deployed
    if deployed is not None and peer is not None:
        return deployed(
            peer, config.peers, config.seed, Path(config.data_dir), config.dataset_options
        )
    return load_problem(
        config.dataset,
        config.partition,
        config.peers,
        config.seed,
        Path(config.data_dir),
        config.dataset_options,
    )


def check(config: Config) -> Problem:
    """The run's data, once it is sure that graph, data, model and method go together.

    A method or a model whose options have `fits(problem)` may refuse by a ValueError.

    Raises
    ------
    ConfigError, DataError : they do not; one line says why.
    """
    config.graph()
    problem = problem_of(config)
    check_method(config, problem)
    return problem


def check_method(config: Config, problem: Problem) -> None:
    """Refuse data that the model, the augmentation or the method cannot take.

    Raises
    ------
    ConfigError : one line says why.
    """
    try:
        if config.network != "auto":
            check_task(config.network, problem.task)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    shape = problem.inputs.shape[1:]
    if config.augment != "none" and (problem.task != "classification" or len(shape) != 3):
        raise ConfigError(
            f'augment = "{config.augment}" wants images, but an example of {problem.name} has '
            f'shape {shape}: set augment = "none"'
        )
    chosen = (config.method, config.options), (config.network, config.model_options)
    for name, options in chosen:
        fits = getattr(options, "fits", None)
        if fits is not None:
            try:
                fits(problem)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None


def statistics(problem: Problem) -> Table:
    """Who holds what, for a terminal: a line a peer, the first `ROWS` of them."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("peer", "cluster", "train", "validation", "test"):
        table.add_column(title, justify="right")
    table.add_column("training examples of each class")
    rows = problem.describe()
    for row in rows[:ROWS]:
        cluster, labels = row["cluster"], row["train"]["labels"]
        sizes = (str(row[part]["size"]) for part in ("train", "validation", "test"))
        counts = "-" if labels is None else " ".join(map(str, labels))
        table.add_row(str(row["peer"]), "-" if cluster is None else str(cluster), *sizes, counts)
    if len(rows) > ROWS:
        table.add_row("...", "", "", "", "", f"{len(rows)} peers in all")
    return table


def begin(config: Config, problem: Problem) -> Path:
    """Make the run directory: config.toml and split.json (the statistics of the split)."""
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        (run_dir / "config.toml").write_text(config.toml(), encoding="utf-8")
        (run_dir / "split.json").write_text(json.dumps(problem.describe()), encoding="utf-8")
    with suppress(FileNotFoundError):
        (run_dir / "progress.json").unlink()  # of the part of the run that is being resumed
    return run_dir
