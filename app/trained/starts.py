"""Models of an earlier run, from which the peers of a run start: the key `start-from`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.app.config.config import Config, ConfigError
from coterie.datasets.preprocessing import Preprocessing
from coterie.datasets.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.app.trained.about import About


def check(config: Config, problem: Problem) -> None:
    """Refuse models that do not fit the run; without `start-from` nothing is read.

    ConfigError or ResultsError: the run has no such models, or its network or peers differ.
    """
    if config.start_from:
        for _ in _models(config, problem):
            pass


def models(config: Config, problem: Problem) -> list[Mapping[str, Tensor]]:
    """Return the named tensors of each peer's model; errors as `check`."""
    return list(_models(config, problem))


def _models(config: Config, problem: Problem) -> Iterator[Mapping[str, Tensor]]:
    from coterie.app.trained import personal  # torch: only where models are read

    directory = Path(config.out, config.start_from)
    if problem.start is not None:
        raise ConfigError(f"start-from: {config.dataset} prescribes the start")
    for peer in range(config.peers):
        about, tensors = personal.read(personal.find(directory, peer))
        why = _difference(about, config, problem, peer)
        if "mixture" in tensors:
            why = f"its model is a mixture ({about.method}), and a peer starts from a single model"
        if why:
            raise ConfigError(f"start-from: {directory}: peer {peer}: {why}")
        yield tensors


def _difference(about: About, config: Config, problem: Problem, peer: int) -> str:
    """Return how a saved model differs from the network of a run; "" if it does not."""
    name = problem.names[peer] if problem.names else f"peer {peer}"
    fitted = problem.preprocessing[peer] if problem.preprocessing else None
    options = _values(config.dataset_options)
    pairs: dict[str, tuple[Any, Any]] = {
        "name": (about.peer_name, name),
        "network": (about.model, config.network),
        "options of the network": (dict(about.model_options), _values(config.model_options)),
        "adaptation of the network": (dict(about.adaptation), _values(config.adaptation)),
        "shape of an example": (about.shape, tuple(problem.inputs.shape[1:])),
        "number of outputs": (about.outputs, problem.outputs),
        "classes": (about.classes, problem.classes),
        "columns": (_columns(about.preprocessing), _columns(fitted)),
        "table.scale": (about.dataset_options.get("scale", "own"), options.get("scale", "own")),
    }
    for what, (there, here) in pairs.items():
        if there != here:
            return f"{what}: {there}, in this run {here}"
    return ""


def _columns(fitted: Preprocessing | None) -> list[dict[str, Any]]:
    """Return the columns as a model file has them."""
    return [] if fitted is None else [column.as_json() for column in fitted.columns]


def _values(options: object) -> dict[str, Any]:
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
