"""Yardsticks: they are scikit-learn's models on the rows, splits and scale of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold

import coterie
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.config.registry import YARDSTICKS
from coterie.app.runs.rundir import Run
from coterie.clients.methods.yardsticks import STRENGTHS
from coterie.datasets.problem import Problem, Split
from tests.inline import run
from tests.stepping import Stepping

HEARTS: dict[str, Any] = {
    "dataset": "heart-disease", "peers": 4, "model": "linear", "num-server-rounds": 2,
    "evaluate-every": 2, "partition.kind": "natural", "dtype": "float64",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "logistic-pooled"])
def test_it_is_logistic_regression_with_c_by_cross_validation(tmp_path: Path, name: str) -> None:
    flat = HEARTS | {"method": name}
    result, problem = run(flat, tmp_path), problem_of(Config.from_flat(flat))
    inputs = (problem.inputs - problem.mean) / problem.std
    every = np.concatenate(problem.train.rows), np.concatenate(problem.train.targets)
    for peer in (0, 1, 3):  # 2 has one healthy patient
        rows, labels = problem.train.rows[peer], problem.train.targets[peer]
        rows, labels = every if name == "logistic-pooled" else (rows, labels)
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        search = GridSearchCV(
            LogisticRegression(max_iter=1000), {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds
        ).fit(inputs[rows], labels)
        p_n2 = search.predict_proba(inputs[problem.test.rows[peer]])
        p_n2 = (len(labels) * p_n2 + 0.5) / (len(labels) + 1)
        truth = problem.test.targets[peer]
        expected = {
            "test_loss": log_loss(truth, p_n2), "auroc": roc_auc_score(truth, p_n2[:, 1]),
            "test_accuracy": (p_n2.argmax(axis=1) == truth).mean(),
        }  # fmt: skip
        for key, value in expected.items():
            assert result.metric(key)[peer] == pytest.approx(value, rel=1e-8), (peer, key)
    assert np.isfinite(result.metric("test_loss")).all()


def test_decay_of_the_weights_is_the_penalty_of_logistic_regression(tmp_path: Path) -> None:
    """Mean loss + (decay / 2) (|w_0|^2 + |w_1|^2), w_1 = -w_0 = w / 2: C = 2 / (n decay)."""
    decay = 0.1
    flat = HEARTS | {
        "method": "local", "num-server-rounds": 1, "evaluate-every": 1, "local-steps": 300,
        "batch-size": 1000, "learning-rate": 1.0, "momentum": 0.9, "weight-decay": decay,
        "weight-decay-on": "weights",
    }  # fmt: skip
    problem = problem_of(Config.from_flat(flat))
    inputs = (problem.inputs - problem.mean) / problem.std
    for peer, model in enumerate(run(flat, tmp_path).models()):
        rows, labels = problem.train.rows[peer], problem.train.targets[peer]
        twin = LogisticRegression(C=2 / (len(rows) * decay), tol=1e-9, max_iter=1000)
        twin.fit(inputs[rows], labels)
        slopes, biases = (model[name].numpy() for name in ("1.weight", "1.bias"))
        assert slopes[1] - slopes[0] == pytest.approx(twin.coef_[0], abs=1e-5)
        assert biases[1] - biases[0] == pytest.approx(twin.intercept_[0], abs=1e-4)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["forest", "logistic-pooled"])
def test_neither_hosting_nor_chance_matters(tmp_path: Path, name: str) -> None:
    flat = HEARTS | {"method": name, "num-server-rounds": 1}
    one, several = run(flat, tmp_path / "1"), run(flat, tmp_path / "2", [[0], [1, 2, 3]])
    assert np.array_equal(one.metric("test_loss"), several.metric("test_loss"))
    assert (one.metric("test_loss", 0) == one.metric("test_loss", 1)).all(), "one fit"
    assert (one.metric("bytes_sent") == 0).all()


def numbers(targets: list[Any], task: Any, outputs: int) -> Problem:
    x = np.random.default_rng(0).normal(size=(20, 2))
    rows = tuple(np.arange(20) for _ in targets)
    part = Split(rows, tuple(targets))
    return Problem(
        "numbers", task, x, part, part, part, outputs, np.zeros(2), np.ones(2),
        np.full(len(targets), 20),
    )  # fmt: skip


def scores(name: str, problem: Problem) -> np.ndarray[Any, Any]:
    flat: dict[str, Any] = {
        "method": name,
        "peers": problem.peers,
        "model": "linear",
        "dtype": "float64",
    }
    cohort = Stepping(flat, problem=problem)
    return cohort.rule.evaluate(cohort.state, "test").losses.numpy()


@pytest.mark.parametrize("name", ["logistic", "forest"])
def test_a_peer_of_one_class_has_a_finite_loss(name: str) -> None:
    """A class that 20 training rows lack has the probability 1 / 2 of 1 row in 21."""
    both = np.arange(20) % 2
    problem = numbers([both, np.zeros(20, dtype=np.int64)], "classification", 2)
    problem = replace(problem, test=Split(problem.test.rows, (both, both)))
    seen, unseen = (20 + 0.5) / 21, 0.5 / 21
    assert scores(name, problem)[1] == pytest.approx(-np.log([seen, unseen]).mean())


def test_numbers_are_predicted_by_ridge_regression() -> None:
    problem = numbers([np.sin(np.arange(20.0))[:, None]], "regression", 1)
    x, y = problem.inputs, problem.train.targets[0]
    model = RidgeCV([1 / strength for strength in STRENGTHS]).fit(x, y[:, 0])
    assert scores("ridge", problem)[0] == pytest.approx(np.mean((model.predict(x) - y[:, 0]) ** 2))
    assert 0 < scores("forest", problem)[0] < np.var(y)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_mixed_is_partial_pooling_of_one_group(tmp_path: Path, kind: str) -> None:
    """All letters arrive, so that rows and letters say the same; column 3 is constant at peer 2."""
    g, data = np.random.default_rng(0), []
    for peer in range(4):
        x = g.normal(size=(50, 3))
        x[:, 2] = np.where(peer == 2, 1.0, x[:, 2])
        eta = x @ [1.0, -1.0, 0.5] + peer + g.logistic(size=50)
        y = (eta > 1).astype(np.int64) if kind == "classification" else 7 * eta[:, None]
        data.append({"x": x, "y": y})
    ends = []
    for method in ("mixed", "partial-pooling"):
        keys: dict[str, Any] = {"method": method, "num-server-rounds": 1, "evaluate-every": 1}
        keys |= {"model": "linear", "dtype": "float64", "out": str(tmp_path)}
        keys |= {"partial-pooling.groups": 1} if method != "mixed" else {}
        directory = coterie.run(None, keys, peers_data=data).directory
        ends.append(Run.read(directory).last("test_loss"))
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert ends[0] != pytest.approx(ends[0][::-1], rel=1e-3)


def test_mixed_is_a_plain_loop() -> None:
    """Expectation maximisation with one group and a background, equation by equation."""
    g, p, d = np.random.default_rng(1), 3, 3
    inputs = np.insert(g.normal(size=(p, 20, 2)), 0, 1, axis=2)
    labels = (inputs @ [0.5, 1.0, -1.0] + g.logistic(size=(p, 20)) > 0).astype(np.int64)
    letters = []
    for x, y in zip(inputs, labels, strict=True):
        t, weak = np.zeros(d), np.diag([1 / 25, 1 / 2, 1 / 2])
        for _ in range(50):
            q = 1 / (1 + np.exp(-x @ t))
            h = (x.T * q * (1 - q)) @ x
            t = t + np.linalg.solve(h + weak, x.T @ (y - q) - weak @ t)
        letters.append((h @ t + weak @ t, h))
    share, spread, far = np.array([[1 / 1.1, 0.1 / 1.1]] * p), np.array([25, 0.1, 0.1]), 1.0
    for _ in range(1000):
        pi = (share.sum(axis=0) + 0.5) / (p + 1)
        a, c, log = 0.1 * np.eye(d), np.zeros(d), np.zeros((p, 2))
        for r, (b, h) in zip(share, letters, strict=True):
            weight = np.linalg.inv(np.diag(spread) + np.linalg.inv(h))  # (T + S_i)^-1
            a, c = a + r[0] * weight, c + r[0] * weight @ np.linalg.solve(h, b)
        mean, within, beyond = np.linalg.solve(a, c), list[Any](), list[Any]()
        for i, (b, h) in enumerate(letters):
            m, s = np.linalg.solve(h, b), np.linalg.inv(h)
            for k, (centre, v) in enumerate(((mean, spread), (0 * mean, np.array([25, far, far])))):
                v_s = np.diag(v) + s
                z = m - centre
                log[i, k] = -0.5 * (z @ np.linalg.solve(v_s, z) + np.linalg.slogdet(v_s)[1])
                post = np.linalg.inv(h + np.diag(1 / v))
                at, apart = post @ (b + centre / v), post / v - np.eye(d)
                unsure = np.linalg.inv(a) if k == 0 else 0 * a  # of the mean: REML
                variance = np.diag(post + apart @ unsure @ apart.T)
                (within, beyond)[k].append((at, (at - centre) ** 2 + variance))
        share = pi * np.exp(log)
        share /= share.sum(axis=1, keepdims=True)
        used = [r @ np.array([w[0], f[0]]) for r, w, f in zip(share, within, beyond, strict=True)]
        new = 1e-3 + share[:, 0] @ np.array([square for _, square in within])
        spread = np.append(25, np.maximum(new / (share[:, 0].sum() + 1e-2), 1e-4)[1:])
        far = 0.3 + share[:, 1] @ [square[1:].mean() for _, square in beyond]
        far = float(np.clip(far / (0.3 + share[:, 1].sum()), 0.05, 10))
    rows = tuple(np.arange(20 * i, 20 * i + 20) for i in range(p))
    part = Split(rows, tuple(labels))
    x = inputs[..., 1:].reshape(60, 2)
    problem = Problem("loop", "classification", x, part, part, part, 2, np.zeros(2), np.ones(2),
                      np.full(p, 20))  # fmt: skip
    of_p = scores("mixed", problem)
    for i in range(p):
        eta = inputs[i] @ used[i]
        expected = np.log1p(np.exp(np.where(labels[i], -eta, eta))).mean()
        assert of_p[i] == pytest.approx(expected, rel=1e-4)


def test_mixed_refuses_many_columns(tmp_path: Path) -> None:
    data = [{"x": np.zeros((20, 200)), "y": np.arange(20) % 2}] * 2
    with pytest.raises(coterie.Error, match="201 parameters are more than 200"):
        coterie.run(None, {"method": "mixed", "out": str(tmp_path)}, peers_data=data)


@pytest.mark.parametrize("name", YARDSTICKS)
def test_privacy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"privacy does not cover {name}"):
        Config.from_flat({"method": name, "privacy.kind": "examples"})
