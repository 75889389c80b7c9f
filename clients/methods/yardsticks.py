"""Yardsticks: scikit-learn's models on the peers' rows, what an institution would use without us.

Linear: logistic regression, whose C has the best log loss in a cross-validation inside the training
rows (a group, such as a patient, is in one fold); ridge regression for numbers. Forest: a random
forest. They are fitted once, to the rows of each peer or to those of all peers, and evaluated as
the models of methods are. Rows, splits and scale are those of the run. Mixed: partial pooling with
one group (`coterie.clients.parts.random_effects`), from the rows of all peers.

A class that does not occur in n training rows is possible nevertheless, so the probabilities of k
classes are (n p + 1 / k) / (n + 1), as if one more row were of no class in particular: the log loss
is finite, and neither decisions nor AUROC change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from coterie.clients.engine.linear import contrast, quadratic
from coterie.clients.hints import Backend, Floats, Ints, Scores, SplitName, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.local import Local
from coterie.clients.methods.partial_pooling import effects_of, packed
from coterie.clients.parts.random_effects import ALONE, FREE
from coterie.clients.rule import State
from coterie.datasets.problem import Problem

STRENGTHS = tuple(10.0**k for k in range(-3, 3))
"""Tried values of C, and of 1 / alpha of a ridge regression."""
FOLDS, TREES, LEAF = 5, 200, 3
MOST_PARAMETERS = 200
"""Number of parameters up to which a mixed model takes seconds."""

ROW: Mapping[str, Any] = {
    "group": "references",
    "reference": "is scikit-learn's",
    "exposes": "it is a reference without privacy",
}


class Yardstick(Local):
    """Base of the yardsticks; subclasses choose the model."""

    def estimator(self, targets_n: Ints | Floats, groups_n: Ints | None) -> Any:
        """Return the unfitted model for training targets and their groups, if known."""
        raise NotImplementedError

    def update(self, s: State, inbox: Inbox) -> State:
        return s

    @cached_property
    def _known(self) -> dict[SplitName, list[Tensor]]:
        return {}

    def evaluate(self, s: State, split: SplitName) -> Scores:
        known = self._known.setdefault(split, [])
        is_new, calls = not known, iter(tuple(known))

        def predict(backend: Backend, at: Tensor, inputs_eb: Tensor) -> Tensor:
            if is_new:
                values = [
                    self.models[p](rows.flatten(1).double().cpu().numpy())
                    for p, rows in zip(at.tolist(), inputs_eb, strict=True)
                ]
                known.append(self.engine.tensor(np.stack(values)))
            return known[-1] if is_new else next(calls)

        return self.engine.prediction_losses(predict, split)

    @cached_property
    def models(self) -> Sequence[Callable[[Floats], Floats]]:
        """The fitted model of each hosted peer."""
        count = 1 if self.pools else len(self.engine.peers)
        fitted = [self._fitted(*self.engine.training_rows(p)) for p in range(count)]
        return fitted * (len(self.engine.peers) // count)

    def _fitted(
        self, inputs_nm: Floats, targets_n: Any, groups_n: Ints | None
    ) -> Callable[[Floats], Floats]:
        from sklearn.exceptions import ConvergenceWarning

        is_constant = self.engine.kind == "classification" and len(np.unique(targets_n)) == 1
        if targets_n.shape[1:] == (1,):
            targets_n = targets_n[:, 0]
        model = None if is_constant else self.estimator(targets_n, groups_n)
        if model is not None:
            with warnings.catch_warnings(), threadpool_limits(1):  # as fast, and sums stay the same
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(inputs_nm, targets_n)
        return _predictor(model, targets_n, self.engine.outputs, self.engine.kind)


def _predictor(
    model: Any, targets_n: Ints | Floats, outputs: int, kind: str
) -> Callable[[Floats], Floats]:
    """Return class probabilities (b, k), or numbers, of a model; None: of the only class."""
    classes, rows = np.unique(targets_n), len(targets_n)

    def predict(inputs_bm: Floats) -> Floats:
        if kind == "regression":
            return np.asarray(model.predict(inputs_bm)).reshape(len(inputs_bm), -1)
        p_bk = np.zeros((len(inputs_bm), outputs))
        p_bk[:, classes] = 1 if model is None else model.predict_proba(inputs_bm)
        return np.asarray((rows * p_bk + 1 / outputs) / (rows + 1))

    return predict


class Linear(Yardstick, **ROW, summary="scikit-learn's linear model of each peer alone"):
    """Logistic or ridge regression."""

    def estimator(self, targets_n: Ints | Floats, groups_n: Ints | None) -> Any:
        from sklearn import model_selection as cv
        from sklearn.linear_model import LogisticRegression, RidgeCV

        units = np.arange(len(targets_n)) if groups_n is None else groups_n
        if self.engine.kind == "regression":
            folds, parts = min(FOLDS, len(np.unique(units))), None
            if groups_n is not None and folds > 1:
                parts = [*cv.GroupKFold(folds).split(targets_n, groups=units)]
            return RidgeCV([1 / strength for strength in STRENGTHS], cv=parts)
        model, classes = LogisticRegression(max_iter=1000), np.unique(targets_n)
        folds = min(FOLDS, *(len(np.unique(units[targets_n == each])) for each in classes))
        if folds < 2:
            return model
        kind = cv.StratifiedKFold if groups_n is None else cv.StratifiedGroupKFold
        split = kind(folds, shuffle=True, random_state=self.engine.seed)
        parts = [
            (train, test)
            for train, test in split.split(targets_n, targets_n, groups_n)
            if all(np.isin(classes, targets_n[rows]).all() for rows in (train, test))
        ]
        if not parts:
            return model
        return cv.GridSearchCV(model, {"C": STRENGTHS}, scoring="neg_log_loss", cv=parts)


class Forest(Yardstick, **ROW, summary="scikit-learn's random forest of each peer alone"):
    """Random forest."""

    def estimator(self, targets_n: Ints | Floats, groups_n: Ints | None) -> Any:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        is_regression = self.engine.kind == "regression"
        kind = RandomForestRegressor if is_regression else RandomForestClassifier
        return kind(TREES, min_samples_leaf=LEAF, random_state=self.engine.seed)


class PooledLinear(Linear, **ROW, summary="scikit-learn's linear model of all peers' data"):
    """Logistic or ridge regression on the rows of all peers."""

    pools: ClassVar[bool] = True


class PooledForest(Forest, **ROW, summary="scikit-learn's random forest of all peers' data"):
    """Random forest on the rows of all peers."""

    pools: ClassVar[bool] = True


class Mixed(
    Yardstick, **ROW | {"reference": "is a mixed model of the data of all peers"},
    summary="mixed model of all peers' data: a common distribution of slopes, free intercepts",
):  # fmt: skip
    """Partial pooling with one group, from the rows of all peers."""

    pools: ClassVar[bool] = True

    def check_data(self, problem: Problem) -> None:
        """Reject data with many columns, whose square each step of the estimation inverts."""
        c_kc = contrast(problem.task, problem.outputs)
        if (d := c_kc.shape[1] * (1 + problem.inputs[0].size)) > MOST_PARAMETERS:
            raise ValueError(f"{d} parameters are more than {MOST_PARAMETERS}: take fewer columns")

    @cached_property
    def models(self) -> Sequence[Callable[[Floats], Floats]]:
        """Predictions by the posterior mean of each hosted peer."""
        engine, letters = self.engine, list[Floats]()
        x_rm, y_r, _ = engine.training_rows(0)
        c_kc, ends_n = contrast(engine.kind, engine.outputs), np.cumsum(engine.samples)
        is_free_d = np.tile(np.arange(1 + x_rm.shape[1]) == 0, c_kc.shape[1])
        weak = np.zeros(len(is_free_d)), 1 / np.where(is_free_d, FREE, ALONE)
        for rows in np.split(np.arange(len(y_r)), ends_n[:-1].astype(np.int64)):
            x_jm = np.where(np.ptp(x_rm[rows], axis=0), x_rm[rows], 0.0)  # no constant columns
            of = quadratic(engine.task, engine.kind, x_jm, y_r[rows], engine.outputs, *weak)
            letters.append(packed(of))
        effects, unit = effects_of(np.array(letters), is_free_d, groups=1)
        theta_pcj = unit * effects.estimates[engine.peers].reshape(
            len(engine.peers), c_kc.shape[1], -1
        )
        return [partial(_predicted, c_kc @ theta_cj, engine.kind) for theta_cj in theta_pcj]


def _predicted(theta_kj: Floats, kind: str, inputs_bm: Floats) -> Floats:
    """Return class probabilities or numbers, (b, k)."""
    from scipy.special import softmax

    scores_bk = inputs_bm @ theta_kj[:, 1:].T + theta_kj[:, 0]
    return np.asarray(softmax(scores_bk, axis=1) if kind == "classification" else scores_bk)
