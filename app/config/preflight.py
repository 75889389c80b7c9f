"""Before a run: everything that can be wrong is found while nothing has been written yet."""

from __future__ import annotations

from pathlib import Path

from app.config.config import Config, ConfigError
from clients.models.options import MODELS, Adaptation, check_task
from clients.parts.validation import required
from datasets.problem import Problem
from datasets.table import load_problem


def problem_of(config: Config, peer: int | None = None, split: int | None = None) -> Problem:
    """Load what the peers of a run learn from.

    Parameters
    ----------
    peer : of a deployed node, which may hold its own data only.
    split : seed by which such a node divides its own data; the run's seed without.

    Raises
    ------
    DataError : the data set or its partition cannot be had.
    """
    deployed = config.source.deployed
    if deployed is not None and peer is not None:
        seed = config.seed if split is None else split
        return deployed(peer, config.peers, seed, Path(config.data_dir), config.dataset_options)
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
    check_model(config, problem)
    return problem


def check_model(config: Config, problem: Problem) -> None:
    """Build and try a network that is not ours, is changed or must be private; loads torch.

    Raises
    ------
    ConfigError : it does not learn the problem, or what is done with it cannot be done.
    """
    private = config.privacy.kind != "none"
    ours = config.network in MODELS and config.adaptation == Adaptation()
    if problem.task == "quadratic" or (ours and not private):
        return
    from clients.engine import independence, probe

    about = config.model_options, config.adaptation, problem, config.dtype
    try:
        network = probe.check(config.network, *about)
        if private:
            independence.require_independent(network, problem)
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
