"""Models that a library fits to training rows at once, instead of by gradient steps.

Each is a module like any other, so that its parameters are one row of a stack: letters, files,
evaluation and export work as for networks. A tree is an array of nodes, children after their
parent: `feature`, `threshold`, `left` (the right child is the next node; 0 at a leaf) and `value`.
A row x goes left where x[feature] <= threshold. Evaluation takes a fixed number of steps, and all
indices are clamped: no array can hang it, crash it or read beyond the arrays.

Thresholds are rounded down to float32. Inputs are float32, as inside scikit-learn's trees, so all
decisions are those of scikit-learn. All parameters are 0 before the first fit. Trees of XGBoost and
LightGBM are read from their JSON. They decide as here, too: XGBoost's rows go left where x <
threshold, its thresholds are float32; LightGBM's where x <= threshold. Scores differ by rounding:
XGBoost adds leaves in float32.

A class that does not occur in n training rows is possible nevertheless: the probabilities of k
classes in a leaf are (n p + 1 / k) / (n + 1), as those of the yardsticks. Legend: b = rows, m =
inputs, t = trees, v = nodes, k = outputs, s = models.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.clients.models.convnets import Shape
from coterie.clients.models.options import (
    ForestOptions,
    GradientBoostingOptions,
    LogisticOptions,
)
from coterie.datasets.plugins import PluginError

Floats = npt.NDArray[np.floating[Any]]
Arrays = Mapping[str, npt.NDArray[Any]]
_LARGEST = 1e30
"""Maximum size of a value in a received model, far below overflow of a sum."""
_ZERO = np.float32(1e-35)
"""Size of the largest input that LightGBM takes for 0; some thresholds are this number or its
negative, on whose left it then is not."""

Begun = tuple[Floats, int]
"""Former fits that a fit continues: their scores (b, k) of the rows, and their number."""


class Rows(NamedTuple):
    """Training rows of a fit."""

    inputs: Floats  # (b, m)
    targets: npt.NDArray[Any]  # (b,) or (b, k)
    weights: Floats  # (b,)

    def part(self, mask_b: npt.NDArray[np.bool_]) -> Rows:
        return Rows(*(values[mask_b] for values in self))


class Fitted(nn.Module, ABC):
    """Base of the models that a library fits."""

    threshold_step: float = 0.0
    """Half the step to which inputs are rounded before a fit; 0: they are not."""

    @abstractmethod
    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        """Fit to rows, or to what former fits leave of them; return the parameters by name."""

    def malformed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Mark the models (s,) whose parameters (s, ...) are none that a fit can give."""
        return ~finite(tensors)


def finite(tensors: Mapping[str, Tensor]) -> Tensor:
    """Mark the models (s,) whose parameters (s, ...) are numbers of a plausible size."""
    small_s = [(value.abs() <= _LARGEST).flatten(1).all(dim=1) for value in tensors.values()]
    return torch.stack(small_s).all(dim=0)


class Logistic(Fitted):
    """Multinomial logistic regression: a linear network, fitted by scikit-learn."""

    def __init__(self, shape: Shape, outputs: int, options: LogisticOptions, task: str) -> None:
        super().__init__()
        self._c = options.c
        self.weight = nn.Parameter(torch.zeros(outputs, math.prod(shape)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs.flatten(1), self.weight, self.bias)

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        from sklearn.linear_model import LogisticRegression

        weight_km, bias_k = np.zeros(self.weight.shape), _log_shares(rows, len(self.bias))
        classes = np.unique(rows.targets)
        if len(classes) > 1:
            model = LogisticRegression(C=self._c, max_iter=1000).fit(*rows)
            at = classes if len(classes) > 2 else classes[1:]  # of two classes, the log odds
            weight_km[at] = model.coef_
            bias_k[classes] = 0
            bias_k[at] = model.intercept_
        return {"weight": weight_km, "bias": bias_k}


class Trees(Fitted):
    """Trees as arrays (t, v); `values` is the number of numbers at a leaf."""

    def __init__(self, inputs: int, trees: int, leaves: int, values: int) -> None:
        super().__init__()
        nodes = 2 * leaves - 1
        self._inputs, self._steps = inputs, leaves - 1
        self.feature = nn.Parameter(torch.zeros(trees, nodes))
        self.threshold = nn.Parameter(torch.zeros(trees, nodes))
        self.left = nn.Parameter(torch.zeros(trees, nodes))
        self.value = nn.Parameter(torch.zeros(trees, nodes, values))

    def at_leaves(self, inputs: Tensor) -> Tensor:
        """Return the values (b, t, values) of the leaves that rows reach."""
        x_bm, last = inputs.flatten(1).float(), self.left.shape[1] - 1
        feature_vt, left_vt = _index(self.feature, self._inputs - 1), _index(self.left, last)
        threshold_vt = self.threshold.float().t()
        at_bt = x_bm.new_zeros((x_bm.shape[0], self.left.shape[0]), dtype=torch.int64)
        for _ in range(self._steps):
            is_left_bt = x_bm.gather(1, feature_vt.gather(0, at_bt)) <= threshold_vt.gather(
                0, at_bt
            )
            left_bt = left_vt.gather(0, at_bt)
            child_bt = torch.where(is_left_bt, left_bt, left_bt + 1).clamp(max=last)
            at_bt = torch.where(left_bt > 0, child_bt, at_bt)
        values_vtk = self.value.transpose(0, 1)
        at_btk = at_bt[..., None].expand(-1, -1, values_vtk.shape[2])
        return values_vtk.gather(0, at_btk)

    def malformed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Mark models with a feature or child that does not exist, or a child before its parent."""
        feature, left = tensors["feature"], tensors["left"]
        own_v = torch.arange(left.shape[2], device=left.device)
        wrong = (feature != feature.round()) | (feature < 0) | (feature >= self._inputs)
        wrong |= (left != left.round()) | (left < 0) | (left > left.shape[2] - 2)
        wrong |= (left > 0) & (left <= own_v)
        return wrong.flatten(1).any(dim=1) | super().malformed(tensors)

    def _empty(self) -> dict[str, npt.NDArray[Any]]:
        return {name: np.zeros(value.shape) for name, value in self.named_parameters()}


class Forest(Trees):
    """Random forest; its scores are logarithms of the mean probabilities of its trees."""

    def __init__(self, shape: Shape, outputs: int, options: ForestOptions, task: str) -> None:
        super().__init__(math.prod(shape), options.trees, options.max_leaf_nodes, outputs)
        self._options, self._classifies = options, task == "classification"
        self.threshold_step = options.threshold_step

    def forward(self, inputs: Tensor) -> Tensor:
        mean_bk = self.at_leaves(inputs).mean(dim=1)
        if not self._classifies:
            return mean_bk
        return mean_bk.clamp_min(torch.finfo(torch.float32).tiny).log()

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestClassifier if self._classifies else RandomForestRegressor
        model = kind(
            self._options.trees, max_leaf_nodes=self._options.max_leaf_nodes,
            min_samples_leaf=self._options.min_samples_leaf, random_state=seed,
        )  # fmt: skip
        # scikit-learn 1.9 draws bootstrap samples in another way if there are weights
        weights = None if (rows.weights == 1).all() else rows.weights
        is_column, count = rows.targets.shape[1:] == (1,), len(rows.targets)
        model.fit(rows.inputs, rows.targets[:, 0] if is_column else rows.targets, weights)
        arrays, k = self._empty(), self.value.shape[2]
        for number, tree in enumerate(model.estimators_):
            values_vk = tree.tree_.value.reshape(tree.tree_.node_count, -1)
            if self._classifies:
                shares_vk = np.zeros((len(values_vk), k))
                # scikit-learn 1.9 has shares here, earlier versions had counts
                shares_vk[:, model.classes_] = values_vk / values_vk.sum(axis=1, keepdims=True)
                values_vk = (count * shares_vk + 1 / k) / (count + 1)
            _write(arrays, number, _of_sklearn(tree, values_vk))
        return arrays

    def malformed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        wrong_s = super().malformed(tensors)
        if self._classifies:
            value = tensors["value"]
            wrong_s |= ((value < 0) | (value > 1)).flatten(1).any(dim=1)
        return wrong_s


class Tree(NamedTuple):
    """One tree of a library, its root first; no child (-1) makes a leaf."""

    left: Sequence[int]
    right: Sequence[int]
    feature: Sequence[int]
    threshold: Floats  # as in `Trees`
    value: Floats  # (v, k)


Boosted = tuple[Floats, Iterable[Sequence[Tree]]]
"""Scores (k,) before the first stage, as logarithms of shares, and the stages."""


class GradientBoosting(Trees):
    """Base of gradient boosting; a stage has a tree per score, for two classes one of log odds."""

    def __init__(
        self, shape: Shape, outputs: int, options: GradientBoostingOptions, task: str
    ) -> None:
        self._options, self._classifies = options, task == "classification"
        self._scores = 1 if self._classifies and outputs == 2 else outputs
        trees = options.trees * self._scores
        super().__init__(math.prod(shape), trees, options.max_leaf_nodes, 1)
        self.base = nn.Parameter(torch.zeros(outputs))
        self.threshold_step = options.threshold_step

    def forward(self, inputs: Tensor) -> Tensor:
        values_bt = self.at_leaves(inputs)[..., 0]
        sums_bk = values_bt.unflatten(1, (-1, self._scores)).sum(dim=1)
        if self._scores < len(self.base):
            sums_bk = torch.cat([torch.zeros_like(sums_bk), sums_bk], dim=1)
        scores_bk: Tensor = sums_bk + self.base
        return scores_bk

    @abstractmethod
    def boosted(self, rows: Rows, seed: int, k: int, begun: Begun | None) -> Boosted:
        """Fit to targets 0 to k - 1, all of which occur, or to numbers if k is 1."""

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        # Classes that do not occur in the rows neither get trees nor count in residuals.
        arrays = self._empty()

        def fit(targets_b: npt.NDArray[Any], to: Sequence[int]) -> None:
            """Write the fit of the outputs `to`; of two classes, the trees are of the second."""
            left = None if begun is None else (begun[0][:, to], begun[1])
            start_k, stages = self.boosted(rows._replace(targets=targets_b), seed, len(to), left)
            if begun is None:
                arrays["base"][to] = start_k
            at = [0] if self._scores == 1 else to[1:] if len(to) == 2 else to
            for stage, trees in enumerate(stages):
                for score, tree in zip(at, trees, strict=True):
                    _write(arrays, stage * self._scores + score, tree)

        if not self._classifies:
            for k, target_b in enumerate(rows.targets.reshape(len(rows.targets), -1).T):
                fit(target_b, [k])
            return arrays
        classes, numbers_b = np.unique(rows.targets, return_inverse=True)
        if begun is None:
            arrays["base"] = _log_shares(rows, len(self.base))
        if len(classes) > 1:
            fit(numbers_b, classes.tolist())
        return arrays


class BoostedTrees(GradientBoosting):
    """Gradient boosting of scikit-learn."""

    def boosted(self, rows: Rows, seed: int, k: int, begun: Begun | None) -> Boosted:
        from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

        options, draws, init = self._options, np.random.RandomState(seed), None
        if begun is not None:
            scores_bk, fits = begun
            # Those that break ties follow those of former fits: one per tree.
            draws.randint(0, 2**31 - 1, size=fits * options.trees * (k if k > 2 else 1))
            rows = rows._replace(targets=rows.targets - scores_bk[:, 0]) if k == 1 else rows
            init = "zero" if k == 1 else _Start(scores_bk)
        kind = GradientBoostingRegressor if k == 1 else GradientBoostingClassifier
        model = kind(
            n_estimators=options.trees, learning_rate=options.learning_rate,
            max_leaf_nodes=options.max_leaf_nodes, max_depth=None,
            min_samples_leaf=options.min_samples_leaf, random_state=draws, init=init,
        ).fit(*rows)  # fmt: skip
        start_k = np.zeros(k)
        if begun is None:
            start_k += model.init_.constant_[0] if k == 1 else _log_shares(rows, k)
        return start_k, (
            [
                _of_sklearn(each, options.learning_rate * each.tree_.value.reshape(-1, 1))
                for each in stage
            ]
            for stage in model.estimators_
        )


class _Start:
    """Scores (b, k) of the training rows, as the initial estimator of scikit-learn's boosting."""

    def __init__(self, scores_bk: Floats) -> None:
        self._scores_bk = scores_bk

    def fit(self, inputs: Floats, targets: Floats, sample_weight: Floats | None = None) -> _Start:
        return self

    def predict(self, inputs: Floats) -> Floats:
        return self._scores_bk

    def predict_proba(self, inputs: Floats) -> Floats:
        shares_bk = np.exp(self._scores_bk - self._scores_bk.max(axis=1, keepdims=True))
        return np.asarray(shares_bk / shares_bk.sum(axis=1, keepdims=True))


def _index(values_tv: Tensor, last: int) -> Tensor:
    """Return numbers of any size as indices (v, t) from 0 to `last`."""
    return values_tv.t().nan_to_num(0.0).clamp(0, last).long()


def _of_sklearn(model: Any, value_vk: Floats) -> Tree:
    tree = model.tree_
    children = tree.children_left, tree.children_right
    return Tree(*children, tree.feature, below(tree.threshold), value_vk)


def _write(arrays: Arrays, number: int, tree: Tree) -> None:
    """Write a tree, its nodes in order of depth, siblings side by side."""
    order, left = [0], np.zeros(len(tree.left), dtype=np.int64)
    for place, node in enumerate(order):  # grows
        if tree.left[node] >= 0:
            left[place] = len(order)
            order += [tree.left[node], tree.right[node]]
    left = left[: len(order)]
    inner = left > 0
    arrays["left"][number, : len(left)] = left
    arrays["feature"][number, : len(left)] = np.where(inner, np.take(tree.feature, order), 0)
    arrays["threshold"][number, : len(left)] = np.where(inner, tree.threshold[order], 0)
    arrays["value"][number, : len(left)] = np.where(inner[:, None], 0, tree.value[order])


def below(thresholds: Floats) -> Floats:
    """Round down to float32: the same decisions for inputs in float32."""
    near = thresholds.astype(np.float32)
    below: Floats = np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)
    return below


def _log_shares(rows: Rows, k: int) -> Floats:
    """Return the logarithms of the classes' shares (k,), of an absent class as of 1 / k rows."""
    share_k = np.bincount(rows.targets, rows.weights, k) / rows.weights.sum()
    return np.log(np.where(share_k > 0, share_k, 1 / (k * (len(rows.targets) + 1))))


class XGBoost(GradientBoosting):
    """Gradient boosting of XGBoost, leaf by leaf on histograms."""

    def boosted(self, rows: Rows, seed: int, k: int, begun: Begun | None) -> Boosted:
        xgboost, options = _imported("xgboost"), self._options
        settings = {
            "objective": ("reg:squarederror", "binary:logistic", "multi:softprob")[min(k, 3) - 1],
            "tree_method": "hist", "grow_policy": "lossguide", "max_depth": 0,
            "max_leaves": options.max_leaf_nodes, "learning_rate": options.learning_rate,
            "min_child_weight": max(1.0, self._least(rows.weights, k)),
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


class LightGBM(GradientBoosting):
    """Gradient boosting of LightGBM, leaf by leaf on histograms."""

    def boosted(self, rows: Rows, seed: int, k: int, begun: Begun | None) -> Boosted:
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


class Kinds(nn.Module):
    """Model of one of several kinds, which have the same inputs and outputs.

    So peers with different models have rows of one layout: the number of the kind, and the
    parameters of all kinds; those of other kinds are 0. All kinds are evaluated and one selected:
    no number can make that fail.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(()))
        self.models = nn.ModuleList(models)

    def forward(self, inputs: Tensor) -> Tensor:
        at = self.kind.nan_to_num(0.0).clamp(0, len(self.models) - 1).long()
        outputs = torch.stack([model(inputs) for model in self.models])
        return outputs.index_select(0, at[None])[0]

    def name(self, kind: int) -> str:
        return f"models.{kind}"

    def malformed(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Mark the models (s,) of no kind, with parameters of others, or that no fit gives."""
        kind_s = tensors["kind"]
        wrong_s = ~torch.isin(kind_s, torch.arange(len(self.models)).to(kind_s))
        for kind, model in enumerate(self.models):
            start = f"{self.name(kind)}."
            own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            used_s = torch.stack([(v != 0).flatten(1).any(dim=1) for v in own.values()]).any(dim=0)
            bad_s = model.malformed(own) if isinstance(model, Fitted) else ~finite(own)
            wrong_s |= torch.where(kind_s == kind, bad_s, used_s)
        return wrong_s
