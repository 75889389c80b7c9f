"""Quadratics in two camps, and the plain local training behind the twins of clustering methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from tests.inline import Floats
from tests.problems import write_quadratic

N, D = 6, 3
CAMP = np.arange(N) // 3
SAMPLES = [5, 1, 3, 8, 2, 4]


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
        samples=SAMPLES,
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

    def loss(self, i: int, x: Floats, centre: Floats | None = None) -> float:
        centre = self.c if centre is None else centre
        return float((self.a[i] * (x - centre[i]) ** 2).sum() / 2)

    def train(
        self, x: Floats, more: Callable[[int, Floats], npt.ArrayLike] = lambda i, x: 0.0
    ) -> Floats:
        """Every peer's local steps down f_i's gradient and `more`."""
        x = x.copy()
        for i in range(self.n):
            for _ in range(self.steps):
                g = self.a[i] * (x[i] - self.c[i]) + np.asarray(more(i, x[i]))
                self.velocity[i] = self.momentum * self.velocity[i] + g
                x[i] = x[i] - self.eta * self.velocity[i]
        return x

    def mean(self, x: Floats, who: npt.ArrayLike) -> Floats:
        """The mean of some models by samples."""
        p = self.samples * np.asarray(who)
        return np.asarray(p @ x / p.sum())
