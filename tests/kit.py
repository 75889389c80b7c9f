"""Small problems, an engine, a rule and plain loops, for tests of engines and methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.config.schema import Scalar
from coterie.app.node import assembly
from coterie.clients.engine.engine import Engine
from coterie.clients.rule import Method
from coterie.clients.training import Training
from coterie.datasets.problem import Problem
from tests.inline import Floats, Run
from tests.problems import write_quadratic

TRAINING = Training(batch_size=4, local_steps=3)
Bindable = TypeVar("Bindable", bound=Method)


# ---- engines and rules ------------------------------------------------------------------------


def engine_of(
    problem: Problem,
    model: str = "linear",
    options: object = None,
    *,
    peers: Sequence[int] | None = None,
    training: Training = TRAINING,
    dtype: str = "float64",
    **more: Any,
) -> Engine:
    """An engine of some peers of a problem (all), on the CPU."""
    hosted = range(problem.peers) if peers is None else peers
    return Engine(problem, model, options, hosted, training, dtype=dtype, device="cpu", **more)


def configured(flat: Mapping[str, Scalar], peers: Sequence[int] | None = None) -> Engine:
    """The engine of some peers of a configuration (all)."""
    config = Config.from_flat({"method": "local"} | dict(flat))
    hosted = range(config.peers) if peers is None else peers
    return assembly.engine_of(config, problem_of(config), hosted)


def rule_of(
    options: Bindable, flat: Mapping[str, Scalar], peers: Sequence[int] | None = None
) -> Bindable:
    """Bind a rule to the engine of some peers of a configuration (all), for ten rounds."""
    return options.bind(configured(flat, peers), 10)


# ---- four different peers ---------------------------------------------------------------------

SAMPLES = [1, 2, 3, 10]
PEERS = len(SAMPLES)


def quadratic(path: Path, method: str, **more: Any) -> dict[str, Any]:
    """Return quadratics of four different peers, with three steps and momentum per round."""
    g = np.random.default_rng(0)
    flat: dict[str, Any] = write_quadratic(
        path / "problem.json", g.uniform(0.2, 1.5, (PEERS, 3)), g.normal(size=(PEERS, 3)),
        g.normal(size=3), samples=SAMPLES, validation_centre=g.normal(size=(PEERS, 3)),
    )  # fmt: skip
    return flat | {
        "method": method, "num-server-rounds": 10, "evaluate-every": 3, "local-steps": 3,
        "learning-rate": 0.2, "momentum": 0.5, **more,
    }  # fmt: skip


def digits(method: str, **more: Any) -> dict[str, Any]:
    """Three peers with 20 digits each, some set aside for validation; a network of two layers."""
    return {
        "method": method, "peers": 3, "num-server-rounds": 3, "evaluate-every": 2,
        "local-steps": 3, "batch-size": 8, "momentum": 0.5, "mlp.hidden": "6",
        "partition.clusters": 3, "partition.samples-per-peer": 20, "partition.validation": 0.2,
        **more,
    }  # fmt: skip


def stacked(run: Run, name: str | None = None) -> Tensor:
    """(n, d) the final personal models; or one of their tensors (n, ...)."""
    rows = [
        m[name] if name else torch.cat([m[k].flatten() for k in sorted(m)]) for m in run.models()
    ]
    return torch.stack(rows)


def normed(shape: tuple[int, ...], outputs: int, *_: object) -> nn.Module:
    """A network with batch norm, for a row of `coterie.clients.models.options.MODELS`."""
    inside = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inside, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs)
    )


# ---- six peers in two camps -------------------------------------------------------------------

N, D = 6, 3
CAMP = np.arange(N) // 3
CAMP_SAMPLES = [5, 1, 3, 8, 2, 4]


def camps(directory: Path, method: str, **more: Any) -> dict[str, Any]:
    """Six peers around two centres; three steps with momentum a round.

    `starts = "own"` gives every peer a start of its own; the rest are configuration keys.
    """
    common = more.pop("starts", "common") == "common"
    g = np.random.default_rng(3)
    middle = np.where(CAMP[:, None], 1.0, -1.0) * np.array([1.0, -1.0, 0.5])
    directory.mkdir(exist_ok=True)
    flat: dict[str, Any] = write_quadratic(
        directory / "problem.json",
        g.uniform(0.5, 1.5, (N, D)),
        middle + g.normal(0, 0.2, (N, D)),
        g.normal(0, 0.3, (D,) if common else (N, D)),
        samples=CAMP_SAMPLES,
        validation_centre=middle + g.normal(0, 0.2, (N, D)),
    )
    return flat | {
        "method": method, "num-server-rounds": 8, "evaluate-every": 8, "local-steps": 3,
        "learning-rate": 0.2, "momentum": 0.5, **more,
    }  # fmt: skip


def one_peer(directory: Path, method: str, **more: Any) -> dict[str, Any]:
    """A cohort of a single peer."""
    directory.mkdir(exist_ok=True)
    flat: dict[str, Any] = write_quadratic(
        directory / "one.json", [[0.5, 1.5]], [[1.0, -1.0]], [0.3, 0.2]
    )
    return flat | {
        "method": method, "num-server-rounds": 5, "local-steps": 3, "learning-rate": 0.2,
        "momentum": 0.5, **more,
    }  # fmt: skip


class Plain:
    """The problem behind a configuration, peer by peer.

    Attributes
    ----------
    a, c, v : (n, d) curvatures, centres, and centres of the validation loss.
    heard : (n, n) whom each peer hears, itself included.
    """

    def __init__(self, flat: dict[str, Any]) -> None:
        config = Config.from_flat(flat)
        problem = problem_of(config)
        n = self.n = config.peers
        self.a, self.c = problem.inputs[:n, 0], problem.inputs[:n, 1]
        self.v = problem.inputs[-n:, 1]
        assert problem.start is not None
        self.start = problem.start.copy()
        self.samples = problem.samples.astype(float)
        self.heard = config.graph() | np.eye(n, dtype=bool)
        self.rounds, self.steps = config.num_server_rounds, config.local_steps
        self.eta, self.momentum = config.training.learning_rate, config.training.momentum
        self.velocity = np.zeros_like(self.start)

    def gradient(self, i: int, x: Floats) -> Floats:
        return np.asarray(self.a[i] * (x - self.c[i]))

    def loss(self, i: int, x: Floats, centre: Floats | None = None) -> float:
        centre = self.c if centre is None else centre
        return float((self.a[i] * (x - centre[i]) ** 2).sum() / 2)

    def losses(self, x: Floats) -> Floats:
        return np.array([self.loss(i, x[i]) for i in range(self.n)])

    def train(
        self, x: Floats, more: Callable[[int, Floats], npt.ArrayLike] = lambda i, x: 0.0
    ) -> Floats:
        """Every peer's local steps down f_i's gradient and `more`."""
        x = x.copy()
        for i in range(self.n):
            for _ in range(self.steps):
                g = self.gradient(i, x[i]) + np.asarray(more(i, x[i]))
                self.velocity[i] = self.momentum * self.velocity[i] + g
                x[i] = x[i] - self.eta * self.velocity[i]
        return x

    def mean(self, x: Floats, who: npt.ArrayLike) -> Floats:
        """The mean of some models by samples."""
        p = self.samples * np.asarray(who)
        return np.asarray(p @ x / p.sum())

    def averaged(self, x: Floats) -> Floats:
        """Everybody's mean of the models that it hears."""
        return np.array([self.mean(x, heard) for heard in self.heard])
