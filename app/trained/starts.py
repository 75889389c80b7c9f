"""Models of an earlier run, from which the peers of a run start: the key `start-from`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.app.config.config import Config, ConfigError
from coterie.app.trained.about import About
from coterie.datasets.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor


def check(config: Config, problem: Problem) -> None:
    """Refuse models that do not fit the run; without `start-from` nothing is read."""
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
        why = _difference(about, About.of(config, problem, peer))
        if "mixture" in tensors:
            why = f"its model is a mixture ({about.method}), and a peer starts from a single model"
        if why:
            raise ConfigError(f"start-from: {directory}: peer {peer}: {why}")
        yield tensors


_COMPARED = "peer_name", "model", "model_options", "adaptation", "shape", "outputs", "classes"
"""Fields of About that must be the same."""


def _difference(there: About, here: About) -> str:
    """Return how a saved model differs from that of a run; "" if it does not."""
    pairs = {name: (getattr(there, name), getattr(here, name)) for name in _COMPARED}
    columns = ([column.as_json() for column in each.table] for each in (there, here))
    pairs["columns"] = next(columns), next(columns)
    scales = (each.dataset_options.get("scale", "own") for each in (there, here))
    pairs["table.scale"] = next(scales), next(scales)
    for what, (before, now) in pairs.items():
        if before != now:
            return f"{what.replace('_', ' ')}: {before}, in this run {now}"
    return ""
