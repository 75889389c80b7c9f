"""Pytest fixture `check_method`: test your own method on all kinds of problems.

Usage in a test module::

    from coterie.testing import check_method

    def test_my_method(check_method):
        check_method("my_package.method:Mine")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import of_keywords
from coterie.app.config.preflight import check
from coterie.app.node.node import Node
from coterie.clients.rule import Rule
from coterie.datasets import plugins
from coterie.datasets.source import Source
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Report
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit

PEERS, ROUNDS = 4, 4
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
COMMON: Mapping[str, Any] = {
    "peers": PEERS, "num-server-rounds": ROUNDS, "evaluate-every": 2, "device": "cpu",
    "batch-size": 5, "local-steps": 2, "learning-rate": 0.05, "momentum": 0.5,
}  # fmt: skip


def small_network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a network with batch norm and dropout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), 6), nn.BatchNorm1d(6), nn.ReLU(),
        nn.Dropout(0.1), nn.Linear(6, outputs),
    )  # fmt: skip


def counting(seed: int) -> Source:
    """Return sequences of tokens that count upwards from a random start."""
    tokens = (np.random.default_rng(seed).integers(9, size=(60, 1)) + np.arange(7)) % 9
    rows = np.arange(60)
    return Source("counting", tokens[:, :-1], tokens[:, 1:], rows[:40], rows[40:], 9, "language")


def lifetimes(seed: int) -> Source:
    """Return survival over three intervals; half of the examples are censored."""
    g = np.random.default_rng(seed)
    inputs, rows = g.normal(size=(120, 3)), np.arange(120)
    time = g.exponential(2 * np.exp(inputs[:, 0]))
    targets = np.column_stack(
        [np.searchsorted([1, 2, 4], time, "right"), g.random(120) < 0.5, time]
    )
    return Source("lifetimes", inputs, targets, rows[:80], rows[80:], 3, "survival")


def quadratic(directory: Path) -> dict[str, Any]:
    """Write a quadratic problem with gradient noise; return its keys, with a ring topology."""
    g = np.random.default_rng(0)
    file = directory / "quadratic.json"
    centre = g.normal(size=(PEERS, 3))
    problem = {
        "curvature": g.uniform(0.5, 1.5, (PEERS, 3)), "centre": centre,
        "noise": np.full(PEERS, 0.1), "start": g.normal(size=(PEERS, 3)) + 3,
        "validation_centre": centre + 0.05,
    }  # fmt: skip
    file.write_text(json.dumps({key: value.tolist() for key, value in problem.items()}))
    return {"dataset": "quadratic", "quadratic.file": str(file), "topology": "ring"}


PROBLEMS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "classification": lambda _: {
        "dataset": "digits", "model": "coterie.testing:small_network", "partition.clusters": 2,
        "partition.samples-per-peer": 16, "partition.validation": 0.25,
    },
    "regression": lambda _: {
        "dataset": "least-squares", "model": "linear", "least-squares.samples": 20,
    },
    "survival": lambda _: {
        "dataset": "coterie.testing:lifetimes", "model": "coterie.testing:small_network",
        "partition.kind": "iid", "partition.validation": 0.25,
    },
    "language": lambda _: {
        "dataset": "coterie.testing:counting", "model": "transformer", "transformer.layers": 1,
        "transformer.width": 8, "transformer.heads": 2, "partition.kind": "iid",
        "partition.samples-per-peer": 8, "partition.validation": 0.25,
    },
    "segmentation": lambda _: {
        "dataset": "phantoms", "partition.kind": "iid", "partition.samples-per-peer": 4,
        "partition.validation": 0.25, "batch-size": 2, "local-steps": 1, "num-server-rounds": 2,
    },
    "quadratic": quadratic,
}  # fmt: skip
"""Kind of problem -> function that returns the keys of a small problem."""


@pytest.fixture(params=list(PROBLEMS))
def check_method(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Return a function `(method, **keys)` that tests a method on a kind of problem.

    `method` is a name or a class, `keys` are further keys as in `coterie.run`. The test fails if
    losses or weights are invalid, if no training loss decreases, or if results depend on the
    assignment of peers to nodes. It is skipped if the method does not accept the problem.
    """

    def tried(method: str | type[Rule[Any]], **keys: Any) -> None:
        if not isinstance(method, str):
            method = plugins.register("method", method.__name__, method)
        problem = PROBLEMS[request.param](tmp_path)
        config = Config.from_flat({**COMMON, **problem, **of_keywords(keys), "method": method})
        try:
            check(config)
        except ConfigError as refusal:
            pytest.skip(str(refusal))
        one = _Record.of(config, [range(PEERS)], tmp_path / "one")
        assert_sensible(one, config)
        several = _Record.of(config, [[0], [1, 2], [3]], tmp_path / "several")
        assert_same(one, several, TOLERANCE[config.compute.dtype])

    return tried


class _Record:
    """Recorder of the relay that keeps the peers' reports."""

    def __init__(self) -> None:
        self.reports: dict[tuple[int, int], Report] = {}
        self.complaints: list[str] = []

    @classmethod
    def of(cls, config: Config, hosting: Sequence[Sequence[int]], directory: Path) -> _Record:
        """Run in this process, on nodes that host these peers."""
        record = cls()
        transport = InProcessTransport([Node(config, peers, directory) for peers in hosting])
        try:
            Broker(config.strategy(), transport, record, join_timeout=1.0).run()
        finally:
            if transport.error is not None:  # which the relay only reports
                raise transport.error
        return record

    def round(self, commit: Commit) -> None:
        self.reports |= {(report.round, report.peer): report for report in commit.reports}
        self.complaints += (*commit.refused, *commit.faults)

    def metric(self, name: str, t: int) -> npt.NDArray[np.float64]:
        """Return a metric after round `t`, (n,); NaN if there is none."""
        values = [self.reports[t, peer].metrics[name] for peer in range(PEERS)]
        return np.array(values, dtype=np.float64)

    def weights(self, t: int) -> npt.NDArray[np.float64]:
        """Return the collaboration weights after round `t`, (n, n)."""
        return np.array([self.reports[t, peer].weights for peer in range(PEERS)])


def assert_sensible(run: _Record, config: Config) -> None:
    """Assert complete reports with valid losses and weights, and that a training loss decreases."""
    assert not run.complaints, run.complaints[0]
    rounds, last = sorted({t for t, _ in run.reports}), config.num_server_rounds
    assert rounds == sorted({*range(0, last + 1, config.evaluate_every), last})
    for t in rounds:
        for name in ("test_loss", "train_loss"):
            assert np.isfinite(run.metric(name, t)).all(), f"{name} of round {t} is not finite"
        weights = run.weights(t)
        assert weights.shape == (PEERS, PEERS), "weights() must return an (n, n) array"
        assert np.isfinite(weights).all(), f"weights() of round {t} are not finite"
        assert (weights >= 0).all(), f"weights() of round {t} are negative"
        assert (weights.max(axis=1) > 0).all(), f"in round {t}, a row of weights() is zero"
    assert (run.metric("train_loss", last) < run.metric("train_loss", 0)).any(), (
        "no training loss decreased"
    )


def assert_same(one: _Record, other: _Record, tolerance: float) -> None:
    """Assert that two runs reported the same numbers."""
    assert one.reports.keys() == other.reports.keys()
    for (t, peer), report in one.reports.items():
        same = other.reports[t, peer]
        pairs = [(name, value, same.metrics[name]) for name, value in report.metrics.items()]
        pairs += [("a weight", *pair) for pair in zip(report.weights, same.weights, strict=True)]
        for name, *both in pairs:
            here, there = np.array(both, dtype=np.float64)  # NaN for None
            close = np.isclose(there, here, tolerance, tolerance, equal_nan=True)
            assert close, f"{name} of peer {peer} in round {t} depends on the assignment to nodes"
