"""Models that a library fits to training rows at once, instead of by gradient steps.

Each is a module like any other, so that its parameters are one row of a stack: letters, files,
evaluation and export work as for networks. A tree is an array of nodes, children after their
parent: `feature`, `threshold`, `left` (the right child is the next node; 0 at a leaf) and `value`.
A row x goes left where x[feature] <= threshold. Evaluation takes a fixed number of steps, and all
indices are clamped: no array can hang it, crash it or read beyond the arrays.

Thresholds are rounded down to float32. Inputs are float32, as inside scikit-learn's trees, so all
decisions are those of scikit-learn. All parameters are 0 before the first fit.

A class that does not occur in n training rows is possible nevertheless: the probabilities of k
classes in a leaf are (n p + 1 / k) / (n + 1), as those of the yardsticks. Legend: b = rows, m =
inputs, t = trees, v = nodes, k = outputs, s = models.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.clients.models.convnets import Shape
from coterie.clients.models.options import (
    BoostedTreesOptions,
    ForestOptions,
    GradientBoostingOptions,
    LogisticOptions,
)

Floats = npt.NDArray[np.floating[Any]]
Arrays = Mapping[str, npt.NDArray[Any]]
B = TypeVar("B", bound=GradientBoostingOptions)
_LARGEST = 1e30
"""Maximum size of a value in a received model, far below overflow of a sum."""

Begun = tuple[Floats, int]
"""Former fits that a fit continues: their scores (b, k) of the rows, and their number."""


class Rows(NamedTuple):
    """Training rows of a fit."""

    inputs: Floats  # (b, m)
    targets: npt.NDArray[Any]  # (b,) or (b, k)
    weights: Floats  # (b,)

    def part(self, mask_b: npt.NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
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
        """Return logits (b, k)."""
        return nn.functional.linear(inputs.flatten(1), self.weight, self.bias)

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        from sklearn.linear_model import LogisticRegression

        assert begun is None, "only scikit-learn's boosting is continued"
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
        """Return logits (b, k), or values."""
        mean_bk = self.at_leaves(inputs).mean(dim=1)
        if not self._classifies:
            return mean_bk
        return mean_bk.clamp_min(torch.finfo(torch.float32).tiny).log()

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        assert begun is None, "only scikit-learn's boosting is continued"
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


class GradientBoosting(Trees, Generic[B]):
    """Base of gradient boosting; a stage has a tree per score, for two classes one of log odds."""

    def __init__(self, shape: Shape, outputs: int, options: B, task: str) -> None:
        self._options, self._classifies = options, task == "classification"
        self._scores = 1 if self._classifies and outputs == 2 else outputs
        trees = options.trees * self._scores
        super().__init__(math.prod(shape), trees, options.max_leaf_nodes, 1)
        self.base = nn.Parameter(torch.zeros(outputs))
        self.threshold_step = options.threshold_step

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (b, k), or values."""
        values_bt = self.at_leaves(inputs)[..., 0]
        sums_bk = values_bt.unflatten(1, (-1, self._scores)).sum(dim=1)
        if self._scores < len(self.base):
            sums_bk = torch.cat([torch.zeros_like(sums_bk), sums_bk], dim=1)
        scores_bk: Tensor = sums_bk + self.base
        return scores_bk

    @abstractmethod
    def boosted(
        self, rows: Rows, seed: int, k: int, begun: Begun | None
    ) -> tuple[Floats, Iterable[Sequence[Tree]]]:
        """Fit to targets 0 to k - 1, all of which occur, or to numbers if k is 1."""
        # Returns the scores (k,) before the first stage, as logarithms of shares, and the stages.

    def fitted(self, rows: Rows, seed: int, begun: Begun | None = None) -> Arrays:
        """Fit stages, or further ones that continue former fits; their `base` is 0."""
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


class BoostedTrees(GradientBoosting[BoostedTreesOptions]):
    """Gradient boosting of scikit-learn."""

    def boosted(
        self, rows: Rows, seed: int, k: int, begun: Begun | None
    ) -> tuple[Floats, Iterable[Sequence[Tree]]]:
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
