"""XGBoost and LightGBM as arrays: the libraries' own predictions; without the libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.models.build import build
from coterie.clients.models.fitted import GradientBoosting, Rows
from coterie.clients.models.options import GradientBoostingOptions, XGBoostOptions
from coterie.datasets.plugins import PluginError
from tests.clients.methods.test_predictors import TREES
from tests.clients.models.test_fitted import Array, filled, stacked
from tests.inline import run
from tests.marks import case

MODELS, QUICK = 1000, 48
STAGES = 4
KINDS = ("xgboost", "lightgbm")
ROUNDING = {"xgboost": 1e-5, "lightgbm": 1e-9}  # XGBoost adds in float32


def library(kind: str) -> Any:
    return pytest.importorskip(kind, reason=f"needs the extra {kind}")


def made(kind: str, task: str, features: int, outputs: int, leaves: int) -> GradientBoosting:
    of = {"xgboost": XGBoostOptions, "lightgbm": GradientBoostingOptions}[kind]
    module = build(kind, of(STAGES, max_leaf_nodes=leaves), task, (features,), outputs)
    assert isinstance(module, GradientBoosting)
    return module


def fitted(kind: str, x: Array, y: Array, k: int, leaves: int, weights: Array) -> Any:
    """The library's estimator with the options of `made`; all classes occur."""
    module, shared = library(kind), {"n_estimators": STAGES, "random_state": 0, "n_jobs": 1}
    if kind == "xgboost":
        estimator = module.XGBRegressor if k == 1 else module.XGBClassifier
        model = estimator(
            max_leaves=leaves, max_depth=0, grow_policy="lossguide", learning_rate=0.1, **shared
        )
    else:
        estimator = module.LGBMRegressor if k == 1 else module.LGBMClassifier
        model = estimator(num_leaves=leaves, min_child_samples=3, verbose=-1, **shared)
    return model.fit(x, y, sample_weight=weights)


def at_thresholds(module: GradientBoosting, g: np.random.Generator) -> Array:
    """Rows on the thresholds of all trees, and one float32 below and above them."""
    values = np.unique(module.threshold.detach().float().numpy())
    around = [np.nextafter(values, np.float32(to)) for to in (-np.inf, np.inf)]
    return g.choice(np.concatenate([values, *around]), (200, module._inputs))


@pytest.mark.parametrize(
    "number", [case(number, is_long=number >= QUICK) for number in range(MODELS)]
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
def test_predictions_are_those_of_the_library(number: int) -> None:
    """Sizes, classes, weights and absent classes are random; rows lie on and beside thresholds."""
    g, kind = np.random.default_rng(number), KINDS[number % 2]
    library(kind)
    n, features, leaves = (int(g.integers(*pair)) for pair in ((12, 120), (1, 7), (2, 12)))
    k = int(g.integers(1, 6))
    x = g.normal(size=(n, features)).round(int(g.integers(8))).astype(np.float32).astype(float)
    y = g.normal(3, 10, size=(n, 1)) if k == 1 else g.integers(k, size=n)
    if k > 2 and number % 5 < 2:
        y = np.where(y == 1, 0, y)  # a class that does not occur
    weights = g.gamma(2, size=n).round(2) + 0.1 if number % 3 == 0 else np.ones(n)
    module = made(kind, "regression" if k == 1 else "classification", features, k, leaves).double()
    filled(module, module.fitted(Rows(x, y, weights), 0))
    assert not module.malformed(stacked(module)).any()
    rows = np.concatenate([x, at_thresholds(module, g)]).astype(np.float32)
    ours = module(torch.from_numpy(rows).double()).detach()
    classes, numbers = np.unique(y, return_inverse=True)
    if k == 1:
        theirs = fitted(kind, x, y[:, 0], k, leaves, weights).predict(rows)
        assert np.allclose(ours[:, 0], theirs, rtol=ROUNDING[kind], atol=10 * ROUNDING[kind])
        return
    p = ours.softmax(dim=1).numpy()
    if len(classes) > 1:
        theirs = fitted(kind, x, numbers, k, leaves, weights).predict_proba(rows)
        occur = p[:, classes]
        shares = occur / occur.sum(axis=1, keepdims=True)
        assert np.allclose(shares, theirs, rtol=0, atol=ROUNDING[kind])
    absent = np.setdiff1d(np.arange(k), classes)
    assert (p[:, absent] > 0).all()
    assert (p[:, absent] < 1 / n).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_class_and_outputs_of_many_numbers_have_a_model(kind: str) -> None:
    library(kind)
    module = made(kind, "classification", 2, 3, 4)
    filled(module, module.fitted(Rows(np.eye(2), np.array([1, 1]), np.ones(2)), 0))
    assert (module(torch.eye(2)).argmax(dim=1) == 1).all()
    g = np.random.default_rng(0)
    x, y = g.normal(size=(40, 2)), g.normal(size=(40, 3))
    module, ones = made(kind, "regression", 2, 3, 4).double(), np.ones(40)
    both = filled(module, module.fitted(Rows(x, y, ones), 0))(torch.from_numpy(x)).detach()
    for column in range(3):
        alone = made(kind, "regression", 2, 1, 4).double()
        filled(alone, alone.fitted(Rows(x, y[:, [column]], ones), 0))
        assert torch.equal(both[:, [column]], alone(torch.from_numpy(x)).detach())


@pytest.mark.parametrize(
    ("name", "node", "value"),
    [("feature", 0, 3.0), ("left", 1, 1.0), ("left", 0, 10.0), ("threshold", 0, np.nan)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_arrays_are_found_and_evaluated(
    kind: str, name: str, node: int, value: float
) -> None:
    library(kind)
    g, module = np.random.default_rng(0), made(kind, "classification", 3, 2, 6)
    x, y = g.normal(size=(40, 3)), g.integers(2, size=40)
    filled(module, module.fitted(Rows(x, y, np.ones(40)), 0))
    assert not module.malformed(stacked(module)).any()
    module.get_parameter(name).data[2, node] = value
    assert module.malformed(stacked(module)).all()
    assert module(torch.from_numpy(x)).shape == (40, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_peers_on_nodes_are_peers_in_process(kind: str, tmp_path: Path) -> None:
    library(kind)
    flat = TREES | {"method": "mixture", "model": kind, f"{kind}.trees": 3}
    one, other = run(flat, tmp_path / "one"), run(flat, tmp_path / "other", 3)
    assert not one.refused
    for name in ("test_loss", "test_accuracy", "bytes_sent", "gradient_evaluations"):
        assert (one.metric(name) == other.metric(name)).all()
    assert (one.metric("test_accuracy", 2) > one.metric("test_accuracy", 0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_library_is_named_with_its_packages(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is built and evaluated without it."""
    monkeypatch.setitem(sys.modules, kind, None)
    module = made(kind, "classification", 2, 2, 4)
    assert module(torch.eye(2)).shape == (2, 2)
    with pytest.raises(PluginError, match=rf'"{kind}": pip install {kind}'):
        module.fitted(Rows(np.eye(2), np.array([0, 1]), np.ones(2)), 0)
