"""Models that a library fits: scikit-learn's own predictions, and arrays of any content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from torch import nn

from coterie.clients.models.build import build
from coterie.clients.models.fitted import Fitted, Rows, Trees
from coterie.clients.models.options import (
    ForestOptions,
    GradientBoostingOptions,
    LogisticOptions,
)

TREES = 4
MODELS = 200
KINDS = ("forest", "boosted-trees", "logistic")
Array = npt.NDArray[Any]


def made(kind: str, task: str, features: int, outputs: int, leaves: int) -> Fitted:
    options = {
        "forest": ForestOptions(TREES, leaves),
        "boosted-trees": GradientBoostingOptions(TREES, max_leaf_nodes=leaves),
        "logistic": LogisticOptions(),
    }[kind]
    module = build(kind, options, task, (features,), outputs)
    assert isinstance(module, Fitted)
    return module


def filled(module: Fitted, arrays: Mapping[str, Array]) -> Fitted:
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.from_numpy(np.asarray(arrays[name])))
    return module


def stacked(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach()[None] for name, value in module.named_parameters()}


def reference(kind: str, task: str, leaves: int, seed: int) -> Any:
    """scikit-learn's estimator with the options of `made`."""
    classifies = task == "classification"
    if kind == "logistic":
        return LogisticRegression(C=0.1, max_iter=1000)
    if kind == "forest":
        forest = RandomForestClassifier if classifies else RandomForestRegressor
        return forest(TREES, max_leaf_nodes=leaves, min_samples_leaf=3, random_state=seed)
    boosting = GradientBoostingClassifier if classifies else GradientBoostingRegressor
    return boosting(
        n_estimators=TREES, max_leaf_nodes=leaves, max_depth=None, min_samples_leaf=3,
        random_state=seed,
    )  # fmt: skip


@pytest.mark.some(44)
@pytest.mark.parametrize("number", range(MODELS))
def test_predictions_are_those_of_scikit_learn(number: int) -> None:
    """Coarse inputs put rows on thresholds; the sizes, classes and absent classes are random."""
    g = np.random.default_rng(number)
    kind = KINDS[number % 3]
    task = "regression" if kind != "logistic" and number % 4 == 0 else "classification"
    n, features, leaves = (int(g.integers(*pair)) for pair in ((12, 90), (1, 7), (2, 12)))
    k = 1 if task == "regression" else int(g.integers(2, 5))
    x = g.normal(size=(n, features)).round(int(g.integers(1, 8))).astype(np.float32).astype(float)
    y = g.normal(size=n)[:, None] if k == 1 else g.integers(k, size=n)
    if k > 2 and number % 5 == 0:
        y = np.where(y == 1, 0, y)  # a class that does not occur
    module = made(kind, task, features, k, leaves).double()
    filled(module, module.fitted(Rows(x, y, np.ones(n)), number))
    theirs = reference(kind, task, leaves, number).fit(x, y.reshape(n))
    rows = np.concatenate([x, g.normal(size=(100, features)).astype(np.float32)])
    ours = module(torch.from_numpy(rows)).detach()
    assert not module.malformed(stacked(module)).any()
    if k == 1:
        assert np.allclose(ours[:, 0], theirs.predict(rows), rtol=1e-9, atol=1e-9)
        return
    p = ours.softmax(dim=1).numpy()
    expected = np.zeros((len(rows), k))
    expected[:, theirs.classes_] = theirs.predict_proba(rows)
    if kind == "forest":
        expected = (n * expected + 1 / k) / (n + 1)
        assert np.allclose(p, expected, atol=1e-9)
    else:  # an absent class has the share of 1 / k rows
        occurs = theirs.classes_
        assert np.allclose(
            p[:, occurs] / p[:, occurs].sum(axis=1, keepdims=True), expected[:, occurs], atol=1e-8
        )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_class_have_a_model(kind: str) -> None:
    module = made(kind, "classification", 2, 3, 4)
    filled(module, module.fitted(Rows(np.eye(2), np.array([1, 1]), np.ones(2)), 0))
    p = module(torch.eye(2)).softmax(dim=1)
    assert torch.isfinite(p).all()
    assert (p.argmax(dim=1) == 1).all()


@pytest.mark.parametrize("seed", range(60))
def test_no_array_hangs_crashes_or_reads_beyond(seed: int) -> None:
    """Rows of garbage of all sizes, nan and infinity included, are evaluated all the same."""
    g = np.random.default_rng(seed)
    kind = KINDS[seed % 2]
    module = made(kind, "classification", 3, 3, 6)
    hostile = [np.nan, np.inf, -np.inf, 1e38, -1e38, -1.0, 0.5, 2**31, 2**63, 1e9]
    arrays = {
        name: np.where(
            g.random(value.shape) < 0.5,
            g.choice(hostile, value.shape),
            g.integers(12, size=value.shape),
        )
        for name, value in module.named_parameters()
    }
    outputs = filled(module, arrays)(torch.from_numpy(g.normal(size=(7, 3))).float())
    assert outputs.shape == (7, 3)
    assert module.malformed(stacked(module)).all()


@pytest.mark.parametrize(
    ("name", "node", "value"),
    [
        ("feature", 0, 3.0), ("feature", 0, -1.0), ("feature", 0, 0.5), ("left", 0, 0.5),
        ("left", 1, 1.0), ("left", 2, 1.0), ("left", 0, 10.0), ("left", 0, -1.0),
        ("threshold", 0, float("nan")), ("value", 0, float("inf")), ("value", 0, -0.1),
    ],
)  # fmt: skip
def test_a_change_that_no_fit_makes_is_found(name: str, node: int, value: float) -> None:
    """The second of two models is hostile: a child before its parent, a feature that is none."""
    g = np.random.default_rng(0)
    module = made("forest", "classification", 3, 2, 6)
    assert isinstance(module, Trees)
    x, y = g.normal(size=(40, 3)), g.integers(2, size=40)
    filled(module, module.fitted(Rows(x, y, np.ones(40)), 0))
    both = {key: each.repeat(2, *[1] * (each.dim() - 1)) for key, each in stacked(module).items()}
    both[name][1, 2, node] = value
    assert module.malformed(both).tolist() == [False, True]


def test_weights_count_like_repeated_rows() -> None:
    g = np.random.default_rng(0)
    x, y = g.normal(size=(30, 2)), g.integers(2, size=30)
    module = made("logistic", "classification", 2, 2, 2)
    weighted = module.fitted(Rows(x, y, np.where(y == 0, 2.0, 1.0)), 0)
    again = np.concatenate([np.arange(30), np.flatnonzero(y == 0)])
    repeated = module.fitted(Rows(x[again], y[again], np.ones(len(again))), 0)
    assert np.allclose(weighted["weight"], repeated["weight"], atol=1e-3)


def test_a_forest_has_several_outputs() -> None:
    g = np.random.default_rng(0)
    x, y = g.normal(size=(40, 2)), g.normal(size=(40, 3))
    module = made("forest", "regression", 2, 3, 6).double()
    filled(module, module.fitted(Rows(x, y, np.ones(40)), 0))
    theirs = reference("forest", "regression", 6, 0).fit(x, y)
    ours = module(torch.from_numpy(x)).detach()
    assert np.allclose(ours, theirs.predict(x.astype(np.float32)), rtol=1e-9, atol=1e-9)
