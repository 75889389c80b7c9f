"""Every method on small problems: hosting, restarts and seeds do what they should, and no more.

The rows come from `coterie.app.config.registry.METHODS`; a new method is covered without a change
here, unless it needs an option (`NEEDS`), refuses quadratics (`REFUSES`), or does with a network
what it does not with a vector (`ON_DIGITS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.app.config.registry import METHODS
from coterie.clients.methods import fedem
from coterie.clients.models.options import MODELS
from coterie.strategies.protocol import MEASURES, METRICS
from tests.inline import Run, run
from tests.kit import normed
from tests.problems import write_quadratic

PEERS, ROUNDS = 4, 4
TOLERANCE = 1e-10  # relative, in float64: in float32 the rounding of some processors reaches 2e-5
ONLY_WHERE_IT_IS_SO = {
    "unsound_results", "refused_models", "awake", "attacker", "epsilon",
    "letter_auc", "letter_tpr", "letter_fewest", "letter_readable",
}  # fmt: skip
RANKED = 1e-3
"""Tolerance of `auroc`: rounding that swaps two examples changes it by one pair's share."""
DIGITS: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "partition.clusters": 2,
    "partition.samples-per-peer": 16, "partition.validation": 0.25, "dtype": "float64",
}  # fmt: skip
COMMON: dict[str, Any] = {
    "peers": PEERS, "num-server-rounds": ROUNDS, "evaluate-every": 2, "device": "cpu",
    "batch-size": 5, "local-steps": 2, "learning-rate": 0.05,
    "momentum": 0.5,
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {
    "dpfl": {"dpfl.init-epochs": 1},
    "ifca": {"ifca.clusters": 2},
    "federico": {"federico.neighbours": 1},  # answers have no noise: only samples differ by seed
    "boosting": {"model": "boosted-trees", "boosted-trees.trees": 2},
    "partial-pooling": {"model": "mlp", "mlp.hidden": "8", "model.frozen": "body"},
}
REFUSES = {
    "oracle": "clusters",
    "fedpac": "one class per example",
    "fedproto": "one class per example",
    "stacking": "scores of models",
    "boosting": "does not support quadratic",
    "partial-pooling": "does not support quadratic",
}
"""Methods that refuse quadratics, with a word of the error message."""
WEIGHTED_BY_EXAMPLES = {"wga", "fedproto"}
"""Methods whose weights follow from examples although they learn no graph: WGA estimates how much
to help, FedProto counts the examples of each class."""
ON_DIGITS = (
    "oracle",
    "pooled",
    "fedavg",
    "federico",
    "mixture",
    "selection",
    "stacking",
    "boosting",
    "partial-pooling",
    "dpfl",
    "fedrep",
    "knn-per",
    "fedem",
    "l2c",
    "facade",
    "fedpac",
    "fedproto",
)
"""Methods with clusters, personal buffers, heads, features and ensembles."""

ROWS = [(m, "quadratic") for m in METHODS if m not in REFUSES] + [(m, "digits") for m in ON_DIGITS]
Runs = Callable[..., Run]


def configuration(method: str, problem: str, directory: Path, seed: int = 0) -> dict[str, Any]:
    if problem == "digits":
        flat = DIGITS
    else:
        g = np.random.default_rng(0)
        centre = np.repeat([[1.0, -1, 0], [-1.0, 1, 2]], 2, axis=0) + g.normal(size=(4, 3)) / 8
        flat = write_quadratic(
            directory / "problem.json", g.uniform(0.5, 1.5, (4, 3)), centre,
            g.normal(size=(4, 3)), noise=0.1, samples=[1, 2, 3, 4],
            validation_centre=centre + 0.05,
        ) | {"topology": "ring"}  # fmt: skip
    return {**flat, **COMMON, **NEEDS.get(method, {}), "method": method, "seed": seed}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs of a row, each made once: by seed, and whether nodes share the peers and change."""
    made: dict[tuple[object, ...], Run] = {}

    def of(method: str, problem: str, *, seed: int = 0, shared: bool = False) -> Run:
        key = method, problem, seed, shared
        if key not in made:
            directory = tmp_path_factory.mktemp("run")
            flat = configuration(method, problem, directory, seed)
            half = run(flat, directory, PEERS, until=2) if shared else None
            made[key] = run(flat, directory, [[0], [1, 2], [3]] if shared else 1, after=half)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "mlp", replace(MODELS["mlp"], build=normed))
        yield of


def assert_same(one: Run, other: Run) -> None:
    assert one.rounds == other.rounds == [0, 2, 4]
    assert not one.refused
    for t in one.rounds:
        for name in one.reports[t, 0].metrics:
            a, b = one.metric(name, t), other.metric(name, t)
            near = RANKED if name == "auroc" else TOLERANCE
            assert np.allclose(a, b, rtol=near, atol=near, equal_nan=True), (t, name)
        assert np.allclose(one.weights(t), other.weights(t), rtol=TOLERANCE, atol=TOLERANCE), t
    for mine, yours in zip(one.models(), other.models(), strict=True):
        assert mine.keys() == yours.keys()
        for name, value in mine.items():
            assert np.allclose(value, yours[name], rtol=TOLERANCE, atol=TOLERANCE), name


@pytest.mark.some(6)
@pytest.mark.slow
@pytest.mark.parametrize(("method", "problem"), ROWS)
def test_neither_who_hosts_whom_nor_a_restart_matters(
    runs: Runs, method: str, problem: str
) -> None:
    """Compare one node with four of one peer that continue as three, with 1, 2 and 1 peers."""
    assert_same(runs(method, problem), runs(method, problem, shared=True))


@pytest.mark.some(6)
@pytest.mark.parametrize(("method", "problem"), ROWS)
def test_another_seed_is_another_run(runs: Runs, method: str, problem: str) -> None:
    one, other = runs(method, problem), runs(method, problem, seed=1)
    assert not np.allclose(one.metric("test_loss"), other.metric("test_loss"), rtol=1e-4)
    if not METHODS[method].learns_graph and method not in WEIGHTED_BY_EXAMPLES:
        assert np.allclose(one.weights(), other.weights(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(("method", "problem"), ROWS)
def test_reports_make_sense(runs: Runs, method: str, problem: str) -> None:
    result = runs(method, problem)
    for t in result.rounds:
        names = METRICS.union(METHODS[method].reported)
        names -= {f"component_{k}" for k in range(fedem.FedEM().components, fedem.REPORTED)}
        last = t == ROUNDS and problem == "digits"
        measured = {
            *("balanced_accuracy", "macro_f1", "auroc", "expected_calibration_error")
        } if last else set()  # fmt: skip
        always = names - MEASURES - ONLY_WHERE_IT_IS_SO
        assert result.reports[t, 0].metrics.keys() == always | measured
        for name in ("test_loss", "validation_loss", "train_loss"):
            assert np.isfinite(result.metric(name, t)).all()
        if problem == "digits":
            accuracy = result.metric("test_accuracy", t)
            assert ((accuracy >= 0) & (accuracy <= 1)).all()
        weights = result.weights(t)
        assert weights.shape == (PEERS, PEERS)
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        assert (weights.max(axis=1) > 0).all()
    for name in ("bytes_sent", "bytes_received", "gradient_evaluations"):
        costs = np.array([result.metric(name, t) for t in result.rounds])
        assert (np.diff(costs, axis=0) >= 0).all()
        assert (costs == costs.astype(int)).all()
    assert (result.metric("gradient_evaluations") > 0).all()
    assert (result.metric("train_loss") < result.metric("train_loss", 0)).mean() >= 0.5


@pytest.mark.parametrize("method", REFUSES)
def test_a_problem_that_does_not_suit_is_refused(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=REFUSES[method]):
        run(configuration(method, "quadratic", tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("method", "option", "remedy"),
    [
        ("oracle", {}, "set partition.kind"),
        ("ifca", {"clusters": 0}, "set ifca.clusters"),
        ("all-for-one", {"criterion": "oracle"}, 'set criterion = "binary" or "continuous"'),
    ],
)
def test_who_needs_the_truth_is_refused_where_nobody_knows_it(
    method: str, option: dict[str, Any], remedy: str
) -> None:
    flat = {"method": method} | {f"{method}.{key}": value for key, value in option.items()}
    message = f"{method}: the true clusters are unknown for this problem: {remedy}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(Config.from_flat(flat | {"partition.kind": "iid"}))
    check(Config.from_flat(flat))
