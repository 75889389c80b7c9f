"""Gradient boosting of XGBoost and LightGBM, read from their JSON into arrays.

The libraries are imported only by a fit. Their trees decide for float32 inputs as here: XGBoost's
rows go left where x < threshold, its thresholds are float32; LightGBM's where x <= threshold.
Scores differ by rounding: XGBoost adds leaves in float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from coterie.clients.models.fitted import Begun, Floats, GradientBoosting, Rows, Tree, below
from coterie.clients.models.options import LightGBMOptions, XGBoostOptions
from coterie.datasets.plugins import PluginError

_ZERO = np.float32(1e-35)
"""Size of the largest input that LightGBM takes for 0; some thresholds are this number or its
negative, on whose left it then is not."""


class XGBoost(GradientBoosting[XGBoostOptions]):
    """Gradient boosting of XGBoost, leaf by leaf on histograms."""

    def boosted(
        self, rows: Rows, seed: int, k: int, begun: Begun | None
    ) -> tuple[Floats, Iterable[Sequence[Tree]]]:
        assert begun is None, "only scikit-learn's boosting is continued"
        xgboost, options = _imported("xgboost"), self._options
        settings = {
            "objective": ("reg:squarederror", "binary:logistic", "multi:softprob")[min(k, 3) - 1],
            "tree_method": "hist", "grow_policy": "lossguide", "max_depth": 0,
            "max_leaves": options.max_leaf_nodes, "learning_rate": options.learning_rate,
            "min_child_weight": max(options.min_child_weight, self._least(rows.weights, k)),
            "seed": seed, "nthread": 1, "verbosity": 0,
        }  # fmt: skip
        settings |= {"num_class": k} if k > 2 else {}
        inputs_bm, targets_b, weights_b = rows
        data = xgboost.DMatrix(inputs_bm.astype(np.float32), targets_b, weight=weights_b, nthread=1)
        model = json.loads(xgboost.train(settings, data, options.trees).save_raw("json"))["learner"]
        start_k = np.atleast_1d(json.loads(model["learner_model_param"]["base_score"]))
        if k == 2:  # a probability
            start_k = np.log([1 - start_k[0], start_k[0]])
        elif k > 2:
            start_k = start_k * np.ones(k)
            start_k -= np.logaddexp.reduce(start_k)
        trees = [_of_xgboost(each) for each in model["gradient_booster"]["model"]["trees"]]
        return start_k, _stages(trees, k)

    def _least(self, weights_b: Floats, k: int) -> float:
        """Return a sum of second derivatives that too few rows in a leaf cannot have."""
        rows, most = self._options.min_samples_leaf, (1.0, 0.25, 0.5)[min(k, 3) - 1]
        return rows * most * float(weights_b.max()) if rows > 1 else 0.0


class LightGBM(GradientBoosting[LightGBMOptions]):
    """Gradient boosting of LightGBM, leaf by leaf on histograms."""

    def boosted(
        self, rows: Rows, seed: int, k: int, begun: Begun | None
    ) -> tuple[Floats, Iterable[Sequence[Tree]]]:
        assert begun is None, "only scikit-learn's boosting is continued"
        lightgbm, options = _imported("lightgbm"), self._options
        settings = {
            "objective": ("regression", "binary", "multiclass")[min(k, 3) - 1],
            "num_leaves": options.max_leaf_nodes, "learning_rate": options.learning_rate,
            "min_data_in_leaf": options.min_samples_leaf, "seed": seed, "num_threads": 1,
            "deterministic": True, "force_row_wise": True, "verbose": -1,
        }  # fmt: skip
        settings |= {"num_class": k} if k > 2 else {}
        inputs_bm, targets_b, weights_b = rows
        data = lightgbm.Dataset(inputs_bm, targets_b, weight=weights_b)
        model = lightgbm.train(settings, data, options.trees).dump_model()
        # The leaves of the first trees contain the score before them.
        share_k = np.bincount(targets_b, weights_b) / weights_b.sum() if k == 2 else np.ones(1)
        trees = [_of_lightgbm(each["tree_structure"]) for each in model["tree_info"]]
        return np.full(k, np.log(share_k[0])), _stages(trees, k)


def _imported(library: str) -> Any:
    try:
        return import_module(library)
    except ImportError:
        small = "-cpu (6 MB), or xgboost with CUDA's kernels" if library == "xgboost" else ""
        raise PluginError(f'model = "{library}": pip install {library}{small}') from None


def _stages(trees: Sequence[Tree], k: int) -> Iterable[Sequence[Tree]]:
    width = k if k > 2 else 1
    return (trees[first : first + width] for first in range(0, len(trees), width))


def _of_xgboost(tree: dict[str, Any]) -> Tree:
    """Read a tree; the values of leaves stand among the thresholds."""
    conditions_v = np.array(tree["split_conditions"], dtype=np.float32)
    thresholds_v = np.nextafter(conditions_v, np.float32(-np.inf))
    children = tree["left_children"], tree["right_children"]
    return Tree(*children, tree["split_indices"], thresholds_v, conditions_v[:, None])


def _of_lightgbm(root: dict[str, Any]) -> Tree:
    """Read a tree of nested nodes."""
    nodes, left, right = [root], list[int](), list[int]()
    for node in nodes:  # grows
        is_leaf = "left_child" not in node
        left.append(-1 if is_leaf else len(nodes))
        right.append(-1 if is_leaf else len(nodes) + 1)
        nodes += [] if is_leaf else [node["left_child"], node["right_child"]]
    numbers = {
        name: [node.get(name, 0) for node in nodes]
        for name in ("split_feature", "threshold", "leaf_value")
    }
    thresholds_v = below(np.array(numbers["threshold"], dtype=np.float64))
    thresholds_v[thresholds_v == -_ZERO] = np.nextafter(-_ZERO, np.float32(-np.inf))
    values_v1 = np.array(numbers["leaf_value"], dtype=np.float64)[:, None]
    return Tree(left, right, numbers["split_feature"], thresholds_v, values_v1)
