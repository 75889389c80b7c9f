"""Small runs on which the baselines are compared with plain loops and with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from tests.inline import Floats, Run
from tests.problems import write_quadratic

SAMPLES = [1, 2, 3, 10]
PEERS = len(SAMPLES)


class Quadratics(NamedTuple):
    """f_i(x) = a_i (x - c_i)^2 / 2 summed over coordinates, (n, d) each; p_i are n_i / sum n."""

    a: Floats
    c: Floats
    start: Floats
    p: Floats

    def gradient(self, i: int, x: Floats) -> Floats:
        return np.asarray(self.a[i] * (x - self.c[i]))

    def mean(self, x: Floats) -> Floats:
        """(n, d) the weighted mean of the models, once for each peer."""
        return np.tile(self.p @ x, (PEERS, 1))


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


def quadratics(flat: dict[str, Any]) -> Quadratics:
    """The arrays behind `quadratic`."""
    problem = problem_of(Config.from_flat(flat))
    assert problem.start is not None
    a, c = problem.inputs[:PEERS].swapaxes(0, 1)
    return Quadratics(a, c, problem.start.copy(), np.array(SAMPLES) / sum(SAMPLES))


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
