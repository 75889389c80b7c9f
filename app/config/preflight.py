"""Before a run: everything that can be wrong is found while nothing has been written yet."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from coterie.app.config import schema
from coterie.app.config.config import Config, ConfigError
from coterie.clients.models.options import MODELS, Adaptation, check_task
from coterie.clients.parts.validation import required
from coterie.datasets.files.locate import without_downloads
from coterie.datasets.problem import Problem
from coterie.datasets.table import load_problem


def problem_of(config: Config, peer: int | None = None) -> Problem:
    """What the peers of a run learn from.

    Parameters
    ----------
    peer : of a deployed node, which may hold its own data only, and asks no host for any.

    Raises
    ------
    DataError : the data set or its partition cannot be had.
    """
    deployed = config.source.deployed
    if deployed is not None and peer is not None:
        return deployed(
            peer, config.peers, config.seed, Path(config.data_dir), config.dataset_options
        )
    with nullcontext() if peer is None else without_downloads():
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
    check_paths(config)
    config.graph()
    problem = problem_of(config)
    check_method(config, problem)
    check_model(config, problem)
    return problem


def check_paths(config: Config) -> None:
    """Refuse keys that name a pipe or a device: reading one may never end.

    Raises
    ------
    ConfigError : names the key.
    """
    flat = config.flat()
    for key in sorted(config.paths & flat.keys()):
        path = Path(str(flat[key]))
        if flat[key] and path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{key} = {schema.brief(flat[key])} is no regular file")


def check_model(config: Config, problem: Problem) -> None:
    """Build and try a network that is not ours, or is changed; loads torch only for that.

    Raises
    ------
    ConfigError : it does not learn the problem, or what is done with it cannot be done.
    """
    if problem.task == "quadratic" or (
        config.network in MODELS and config.adaptation == Adaptation()
    ):
        return
    from coterie.clients.engine import probe

    try:
        probe.check(config.network, config.model_options, config.adaptation, problem, config.dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from error


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
    kind = config.attack.kind
    if kind.startswith("label-flip") and problem.task != "classification":
        raise ConfigError(f'attack.kind = "{kind}" wants classes, not {problem.task}')
    if config.privacy.kind != "none" and problem.task == "quadratic":
        raise ConfigError(f"privacy: {problem.name} has no examples that it could protect")
    if config.validates:
        try:
            required(problem)
        except ValueError as error:
            raise ConfigError(f"{config.method}: {error}") from None
    chosen = (config.method, config.options), (config.network, config.model_options)
    for name, options in chosen:
        fits = getattr(options, "fits", None)
        if fits is not None:
            try:
                fits(problem)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
