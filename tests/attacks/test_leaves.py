"""A tree leaves as it is: each leaf describes patients, and each threshold lies between two.

Attack: read the letter. Leaves with few rows give the label of a known patient, thresholds the
values of two patients. Defence: the policy's minimum of rows per leaf and step of thresholds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.config import Config
from coterie.app.institution.security.policy import Policy, PolicyError, policy_of
from coterie.app.institution.security.run_check import check_own_data, check_run
from coterie.clients.leakage import leaves
from coterie.datasets.problem import DataError, Split
from tests.clients.methods.test_boosting import problem
from tests.stepping import Stepping

MODELS = ("forest", "boosted-trees", "xgboost", "lightgbm")
LEAST, STEP = 20, 0.05


def fitted(model: str, task: str, **keys: Any) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """Return the trees of a peer by name, and its training rows."""
    flat: dict[str, Any] = {"method": "local", "model": model, "peers": 1, "num-server-rounds": 1}
    made = problem(task, [150])
    if task == "numbers":
        train, test = (
            Split(part.rows, (part.targets[0][:, :1],)) for part in (made.train, made.test)
        )
        made = replace(made, outputs=1, train=train, test=test)
    stepping = Stepping(flat | {f"{model}.trees": 5} | keys, problem=made)
    engine = stepping.cohort.engine
    stepping.to(1)
    named = engine.network.named(stepping.state.x)
    return {k: v[0].numpy() for k, v in named.items()}, engine.training_rows(0)[0]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("task", ["two", "three", "numbers"])
def test_no_leaf_describes_few_rows(model: str, task: str) -> None:
    if model in ("xgboost", "lightgbm"):
        pytest.importorskip(model)
    keys = {f"{model}.min-samples-leaf": LEAST, f"{model}.threshold-step": STEP}
    trees, rows = fitted(model, task, **keys)
    rounded = np.round(rows / (2 * STEP)) * 2 * STEP
    assert min(leaves(trees, rounded)) >= LEAST
    thresholds = trees["threshold"][trees["left"] > 0]
    assert len(thresholds)
    assert np.abs(thresholds / STEP - np.round(thresholds / STEP)).max() < 1e-3
    assert min(leaves(fitted(model, task)[0], rows)) < LEAST


@pytest.mark.parametrize("model", MODELS)
def test_the_policy_counts_leaves_and_steps(model: str) -> None:
    flat = {
        "method": "mixture", "model": model, "dataset": "table", "peers": 3, "table.test": 0.2,
        "table.columns": "a, b", "table.label": "c",
    }  # fmt: skip
    policy = policy_of({"answers.kind": "plain"})
    step, least = policy.answers.threshold_step, policy.answers.min_examples
    fine = {f"{model}.min-samples-leaf": least, f"{model}.threshold-step": step}
    check_run(policy, Config.from_flat(flat | fine))
    for key, value in ((f"{model}.min-samples-leaf", least - 1), (f"{model}.threshold-step", 0.0)):
        with pytest.raises(PolicyError, match=re.escape(f"does not allow {key} = {value}")):
            check_run(policy, Config.from_flat(flat | fine | {key: value}))
    check_run(policy, Config.from_flat(flat | {"method": "local"}))  # nothing leaves


@pytest.mark.parametrize("model", ["forest", "boosted-trees"])
def test_leaves_count_patients(model: str) -> None:
    """With up to five rows of a patient, five times as many rows in a leaf."""
    least = {"answers.min-examples": 8, "data.min-examples": 8}
    policy, most = policy_of({"answers.kind": "plain", **least}), 5
    made = problem("two", [150])
    groups = made.inputs[:, 0].argsort().argsort() // most  # a patient's rows are alike
    made = replace(made, groups=groups)
    flat: dict[str, Any] = {
        "method": "mixture", "model": model, "dataset": "table", "peers": 3, "table.columns": "a",
        "table.label": "c", "table.group": "patient", "table.scale": "own", "data-dir": "",
    }  # fmt: skip
    rows = made.train.rows[0]
    largest = np.unique(groups[rows], return_counts=True)[1].max()
    enough = 8 * int(largest)
    check_own_data(policy, Config.from_flat(flat | {f"{model}.min-samples-leaf": enough}), made, 0)
    few = Config.from_flat(flat | {f"{model}.min-samples-leaf": enough - 1})
    with pytest.raises(DataError, match=f"must set {model}.min-samples-leaf={enough}"):
        check_own_data(policy, few, made, 0)
    check_own_data(policy, few, replace(made, groups=None), 0)
    trees, cells = fitted(model, "two", **{f"{model}.min-samples-leaf": enough})
    assert min(leaves(trees, cells, groups[rows])) >= 8
    trees, _ = fitted(model, "two", **{f"{model}.min-samples-leaf": 8})
    assert min(leaves(trees, cells, groups[rows])) < 8


def test_the_policy_lists_models() -> None:
    config = Config.from_flat({"method": "local", "model": "forest", "dataset": "digits"})
    check_run(policy_of({"models": "linear, forest"}), config)
    with pytest.raises(PolicyError, match='models = "linear" does not allow model = "forest"'):
        check_run(policy_of({"models": "linear"}), config)
    with pytest.raises(PolicyError, match='models: there is no "forrest", did you mean "forest"'):
        policy_of({"models": "forrest"})
    assert Policy().models == "any"
