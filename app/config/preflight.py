"""Checks before a run: find all errors before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from coterie.app.config import parts, schema
from coterie.app.config.config import Config, ConfigError, needs_validation
from coterie.app.config.keys import nearest
from coterie.app.config.settings import by_peer
from coterie.clients.models.options import MODELS, Adaptation, check_image, check_task, model_of
from coterie.clients.parts.validation import required
from coterie.datasets.files.locate import without_downloads
from coterie.datasets.own.scale import on_agreed_scale, on_common_scale
from coterie.datasets.own.tabular import TableOptions
from coterie.datasets.problem import Problem

_HEADER = 1 << 26
"""Maximum bytes of a safetensors header that are read."""


def problem_of(config: Config, peer: int | None = None, split: int | None = None) -> Problem:
    """Load the learning problem of a run; a deployed node loads only the data of its `peer`."""
    deployed = config.source.deployed
    folder, options = Path(config.data_dir), config.dataset_options
    if deployed is not None and peer is not None:
        seed = config.division if split is None else split
        problem = deployed(peer, config.peers, seed, folder, options)
        # The common scale needs the statistics of the other nodes, see `coterie.app.node`.
        return problem if scale_of(config) == "common" else _scaled(config, problem)
    with nullcontext() if peer is None else without_downloads():
        problem = config.source.load(
            config.partition, config.peers, config.division, folder, options
        )
    return _scaled(config, problem)


def scale_of(config: Config) -> Literal["common", "own", "schema"]:
    """Return how a run scales the numbers of tables; under privacy "common" is the schema's."""
    options = config.dataset_options
    if not isinstance(options, TableOptions):
        return "own"
    if options.scale == "common" and config.privacy.kind != "none":
        return "schema"
    return "own" if config.peers == 1 and options.scale == "common" else options.scale


def _scaled(config: Config, problem: Problem) -> Problem:
    """Put the numbers of a table on the run's scale."""
    scale, options = scale_of(config), config.dataset_options
    if scale == "own":
        return problem
    assert isinstance(options, TableOptions)
    if scale == "common":
        late = config.newcomers
        peers = tuple(peer for peer in range(config.peers) if peer not in late)
        return on_common_scale(problem, peers, options.missing)
    return on_agreed_scale(problem, options.missing)


def check(config: Config) -> Problem:
    """Return the run's problem after checking that graph, data, model and method are compatible."""
    check_paths(config)
    config.graph()
    problem = problem_of(config)
    check_method(config, problem)
    check_model(config, problem)
    return problem


def check_nodes(config: Config) -> None:
    """Refuse a run that cannot be divided over several nodes."""
    if config.letters.scheme == "increments" and not config.strategy().is_constant:
        raise ConfigError(
            'letters.scheme = "increments" over several nodes needs a method, topology and '
            "schedule in which every peer sends to every neighbour in every round; run in one "
            'process (without --nodes), or set letters.scheme = "full"'
        )


def _paths(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the keys that name a file or a directory, as in a message, with the path."""
    flat = config.flat()
    for key in sorted(key for key in config.paths & flat.keys() if flat[key]):
        yield f"{key} = {schema.brief(flat[key])}", Path(str(flat[key]))


def check_paths(config: Config) -> None:
    """Refuse keys that name a pipe or a device: reading one may never end."""
    for key, path in _paths(config):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{key} is not a regular file")


def check_weights(config: Config) -> None:
    """Refuse models of Coterie as pretrained weights of a private run: they may be of its data."""
    for key, path in _paths(config) if config.privacy.kind != "none" else ():
        if path.is_file() and _is_model(path):
            raise ConfigError(
                f"privacy does not cover {key}: it is a model of Coterie, which may have been "
                "trained on the same data; if it was not, save its tensors alone: "
                "safetensors.torch.save_file(safetensors.torch.load_file(...), PATH)"
            )


def _is_model(path: Path) -> bool:
    """Return whether the header of a safetensors file has the format of `app.trained.about`."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return b'"coterie model ' in file.read(min(size, _HEADER))


def check_model(config: Config, problem: Problem) -> None:
    """Build and try a network that is a plugin or adapted; imports torch only in that case."""
    ours = config.network in MODELS and config.adaptation == Adaptation()
    if problem.task == "quadratic" or ours:
        return
    from coterie.clients.engine import probe

    about = config.model_options, config.adaptation, problem, config.compute.dtype
    try:
        probe.check(config.network, *about)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_method(config: Config, problem: Problem) -> None:
    """Reject data that do not fit the model, the augmentation or the method."""
    check_weights(config)
    try:
        for kind in config.kinds:
            if kind != "auto":
                check_task(kind, problem.task)
                if model_of(kind).images:
                    check_image(problem.inputs.shape[1:])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    shape = problem.inputs.shape[1:]
    augment, weights = config.training.augment, config.training.class_weights
    if augment != "none" and (problem.task != "classification" or len(shape) != 3):
        raise ConfigError(
            f'augment = "{augment}" requires images, but an example of {problem.name} has '
            f'shape {shape}: set augment = "none"'
        )
    if weights != "none" and problem.task != "classification":
        raise ConfigError(f'class-weights = "{weights}" requires classes, not {problem.task}')
    if config.attack.row.needs_classes and problem.task != "classification":
        raise ConfigError(
            f'attack.kind = "{config.attack.kind}" requires classes, not {problem.task}'
        )
    if config.privacy.kind != "none" and problem.task == "quadratic":
        raise ConfigError(f"privacy: {problem.name} has no examples that it could protect")
    needs = needs_validation(config.row, config.network)
    if needs or config.keep_models == "best":
        try:
            required(problem)
        except ValueError as error:
            asks = config.method if needs else 'keep-models = "best"'
            raise ConfigError(f"{asks}: {error}") from None
    _check_peer_models(config, problem)
    chosen = (config.method, config.options), (config.network, config.model_options)
    for name, options in chosen:
        if hasattr(options, "fits"):
            raise ConfigError(f"{name}: rename its method fits(problem) to check_data(problem)")
        if (check := getattr(options, "check_data", None)) is not None:
            parts.checked_by_part(name, check, problem)


def _check_peer_models(config: Config, problem: Problem) -> None:
    """Refuse names of `peer-models` that are no peer's, or of a peer that its number names, too."""
    table, names = by_peer(config.peer_models), problem.names
    for peer in table:
        if peer.isdecimal():
            continue
        if not names:
            raise ConfigError(f"peer-models.{peer}: the peers have no names here: use numbers")
        if peer not in names:
            raise ConfigError(f'peer-models: no peer "{peer}"{nearest(peer, names)}')
        if (number := str(names.index(peer))) in table:
            raise ConfigError(f"peer-models: {peer} and {number} are the same peer")
