"""Boosting: its laws, its limits, and a plain loop over scikit-learn's trees."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.tree import DecisionTreeRegressor

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.institution.security.policy import Policy
from coterie.app.institution.security.run_check import max_parameters
from coterie.app.trained.export import export
from coterie.app.trained.personal import personal_model
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.methods.boosting import Boosting
from coterie.datasets.problem import Problem, Split
from tests.inline import run
from tests.problems import classification
from tests.stepping import Stepping

Array = npt.NDArray[np.float64]
SIZES, ROUNDS, STAGES, RATE, LEAF = [60, 70, 80], 4, 3, 0.3, 10
KEYS: dict[str, Any] = {
    "method": "boosting", "model": "boosted-trees", "boosted-trees.trees": STAGES,
    "boosted-trees.learning-rate": RATE, "boosted-trees.max-leaf-nodes": 4,
    "boosted-trees.min-samples-leaf": LEAF,  # smaller leaves have ties, which rounding decides
    "num-server-rounds": ROUNDS, "dtype": "float64",
}  # fmt: skip
DIGITS: dict[str, Any] = {
    "dataset": "digits", "model": "boosted-trees", "boosted-trees.trees": STAGES, "peers": 3,
    "partition.samples-per-peer": 40, "partition.clusters": 1, "evaluate-every": 1, "device": "cpu",
}  # fmt: skip


def problem(task: str, sizes: list[int], validation: int = 0, noise: float = 0.7) -> Problem:
    """Three sums of inputs with noise: the largest of two or three, or their values."""
    k = {"two": 2, "three": 3, "numbers": 2}[task]
    made = classification(
        sizes, shape=(5,), classes=k, tests=[20] * len(sizes),
        validations=[validation] * len(sizes), seed=3,
    )  # fmt: skip
    g = np.random.default_rng(4)
    values = (made.inputs - 1) @ g.normal(size=(5, k)) / 2
    values += noise * g.normal(size=values.shape)
    targets = values if task == "numbers" else values.argmax(axis=1)

    def labelled(split: Split) -> Split:
        return Split(split.rows, tuple(targets[rows] for rows in split.rows))

    return replace(
        made, task="regression" if task == "numbers" else "classification",
        train=labelled(made.train), validation=labelled(made.validation), test=labelled(made.test),
    )  # fmt: skip


def stepped(of: Problem, **keys: Any) -> Stepping:
    stepping = Stepping(KEYS | {"peers": len(of.samples)} | keys, problem=of)
    stepping.to(stepping.strategy.rounds)
    return stepping


def losses(stepping: Stepping, split: Any = "test") -> Array:
    return np.asarray(stepping.cohort.rule.evaluate(stepping.state, split).losses.cpu())


def rounds_taken(stepping: Stepping) -> list[int]:
    return [int(np.count_nonzero(v_tm.any(axis=1)[1:])) for v_tm in stepping.state.v]


@pytest.mark.parametrize("task", ["two", "three", "numbers"])
@pytest.mark.parametrize("validation", [0, 20])
def test_alone_it_is_one_gradient_boosting(task: str, validation: int) -> None:
    """Rounds of 3 stages equal one fit of as many stages, on training and test rows."""
    mine, slow = problem(task, [60], validation, noise=0.2), {"boosted-trees.learning-rate": 0.1}
    rounds = stepped(mine, **slow)
    assert rounds_taken(rounds) == [ROUNDS]
    keys = {"method": "local", "num-server-rounds": 1, "boosted-trees.trees": ROUNDS * STAGES}
    whole = stepped(mine, **slow, **keys)
    for split in ("train", "test"):
        assert losses(rounds, split) == pytest.approx(losses(whole, split), rel=1e-9)


def test_alone_it_stops_early_at_a_multiple_of_its_stages() -> None:
    """With pure noise, held-out losses soon rise; the rounds before that are one fit."""
    mine = problem("two", [40], 20, noise=20.0)
    rounds = stepped(mine)
    (taken,) = rounds_taken(rounds)
    assert 1 <= taken < ROUNDS
    assert (rounds.state.v[0, 1 : 1 + taken] == 1).all()
    keys = {"method": "local", "num-server-rounds": 1, "boosted-trees.trees": taken * STAGES}
    assert losses(rounds) == pytest.approx(losses(stepped(mine, **keys)), rel=1e-9)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("task", ["three", "numbers"])
def test_an_infinite_ridge_is_training_alone(task: str) -> None:
    three = problem(task, SIZES)
    penalised = stepped(three, **{"boosting.ridge": 1e15})
    alone = stepped(three, withhold="0,1,2")
    assert np.allclose(penalised.state.v, alone.state.v, atol=1e-9)
    assert losses(penalised) == pytest.approx(losses(alone), rel=1e-9)


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("task", ["two", "three", "numbers"])
@pytest.mark.parametrize("noise", [0.7, 20.0])
def test_the_held_out_loss_never_rises(task: str, noise: float) -> None:
    mine = problem(task, SIZES, 15, noise)
    course: list[Array] = []

    def ended(*_: Any) -> None:
        course.append(losses(stepping, "validation"))

    stepping = Stepping(KEYS | {"peers": 3, "num-server-rounds": 8}, problem=mine, ended=ended)
    stepping.to(8)
    assert (np.diff(course, axis=0) <= 1e-12).all()
    assert noise > 1 or (course[0] > course[-1]).all()
    refused = (stepping.state.v[:, 1:] == 0).all(axis=2)
    assert (np.diff(course, axis=0)[refused[:, 1:].T] == 0).all()


@pytest.mark.slow
def test_one_round_is_stacking() -> None:
    for task in ("three", "numbers"):
        three = problem(task, SIZES)
        one = stepped(three, **{"num-server-rounds": 1})
        stacking = stepped(three, **{"num-server-rounds": 1, "method": "stacking"})
        assert np.allclose(one.state.v[:, 1], stacking.state.v, atol=1e-9)
        assert losses(one) == pytest.approx(losses(stacking), rel=1e-9)


class Stages:
    """A few stages of boosting for two classes, by hand: Newton's values at the leaves."""

    def __init__(self, x: Array, y: Array, z: Array, draws: np.random.RandomState) -> None:
        self.trees: list[Any] = []
        for _ in range(STAGES):
            p = expit(z)
            tree = DecisionTreeRegressor(
                max_leaf_nodes=4, min_samples_leaf=LEAF, random_state=draws
            ).fit(x, y - p)
            leaves = tree.apply(x)
            values = {
                at: RATE * (y - p)[leaves == at].sum() / (p * (1 - p))[leaves == at].sum()
                for at in np.unique(leaves)
            }
            self.trees.append((tree, values))
            z = z + self.of([self.trees[-1]], x)

    def of(self, trees: Any, x: Array) -> Array:
        added = [np.array([values[at] for at in tree.apply(x)]) for tree, values in trees]
        return np.asarray(sum(added))

    def __call__(self, x: Array) -> Array:
        return self.of(self.trees, x)


def drawn(peer: int, partner: int) -> np.random.RandomState:
    key = stream(0, peer, 0, Purpose.LIBRARY, partner).integers(2**31)
    return np.random.RandomState(int(key))


def ridge(base: Array, scores: list[Array], y: Array) -> tuple[Array, Array]:
    """The best coefficients of models and offsets of classes, by BFGS; 0 if the loss rises."""
    own = np.arange(len(scores) + 2) == 0.0

    def loss(theta: Array) -> float:
        v, b = theta[: len(scores)], theta[len(scores) :]
        z = base + sum(a * z for a, z in zip(v, scores, strict=True)) + b
        losses = np.logaddexp(z[:, 0], z[:, 1]) - z[np.arange(len(y)), y.astype(int)]
        return float(losses.sum())

    def objective(theta: Array) -> float:
        return loss(theta) + float(((theta - own) ** 2).sum()) / 2

    best = minimize(objective, own, method="BFGS", options={"gtol": 1e-9}).x
    if base.any() and loss(best) > loss(0 * best):  # not in round 1
        best = 0 * best
    return best[: len(scores)], best[len(scores) :]


@pytest.mark.slow
def test_a_plain_loop_over_scikit_learns_trees_gives_the_same_coefficients() -> None:
    """Three peers, two classes, five chains without a fold, written out peer by peer."""
    three = problem("two", SIZES)
    stepping = stepped(three, **{"num-server-rounds": 3})
    engine = stepping.cohort.engine
    assert engine.library is not None
    rows = [engine.training_rows(p)[:2] for p in range(3)]
    x, y = [np.asarray(r[0]) for r in rows], [r[1].astype(float) for r in rows]
    fold = [engine.library.folds(engine.data, p, p) for p in range(3)]
    everywhere = np.concatenate(x)
    part = [slice(start, start + n) for start, n in zip((0, 60, 130), SIZES, strict=True)]
    # z[i][c]: scores of all rows by peer i's chain c: the whole one, then those without a fold
    z = np.zeros((3, 6, 210, 2))
    draws = [[drawn(i, c and 1 + c) for c in range(6)] for i in range(3)]  # go on in all rounds
    for t in range(1, 4):
        h = np.zeros_like(z)
        for i in range(3):
            for c in range(6):
                used = fold[i] != c - 1
                start = z[i, c, part[i]][used]
                shares = np.array([1 - y[i][used].mean(), y[i][used].mean()])
                if t == 1:
                    start, h[i, c] = np.tile(np.log(shares), (used.sum(), 1)), np.log(shares)
                stages = Stages(x[i][used], y[i][used], start[:, 1] - start[:, 0], draws[i][c])
                h[i, c, :, 1] += stages(everywhere)
        after = z.copy()
        for i in range(3):
            others = [j for j in range(3) if j != i]
            held = 1 + fold[i], np.arange(210)[part[i]]
            members = [h[i][held], *(h[j, 0, part[i]] for j in others)]
            v, b = ridge(z[i][held], members, y[i])
            assert stepping.state.v[i, t] == pytest.approx(v, abs=1e-5), (i, t)
            added = sum(a * h[j, 0] for a, j in zip(v[1:], others, strict=True)) + b
            after[i] += v[0] * h[i] + added
        z = after
    for i in range(3):
        assert isinstance(stepping.rule, Boosting)
        ours = stepping.rule._scores(stepping.state, i, 4, "train")[0].numpy()
        assert np.allclose(ours, z[i, 0, part[i]], atol=1e-4)


def test_stages_of_scikit_learn_continue_from_scores() -> None:
    """The stages by hand above are scikit-learn's."""
    (rows,) = problem("two", [60]).train.rows
    x, y = problem("two", [60]).inputs[rows], problem("two", [60]).train.targets[0]
    theirs = GradientBoostingClassifier(
        n_estimators=STAGES, learning_rate=RATE, max_leaf_nodes=4, max_depth=None,
        min_samples_leaf=LEAF, init="zero", random_state=5,
    ).fit(x, y)  # fmt: skip
    ours = Stages(x, y.astype(float), np.zeros(60), np.random.RandomState(5))
    assert np.allclose(ours(x), theirs.decision_function(x))


@pytest.mark.slow
def test_more_rounds_help_and_peers_learn_from_each_other() -> None:
    three = problem("three", SIZES)
    alone, one, four = (
        stepped(three, **keys)
        for keys in ({"withhold": "0,1,2"}, {"num-server-rounds": 1}, dict[str, Any]())
    )
    assert losses(four).mean() < losses(one).mean()
    assert losses(four).mean() < losses(alone).mean()
    weights = four.rule.weights(four.state)
    assert np.allclose(weights.sum(axis=1), 1)
    assert (weights > 0).all()


@pytest.mark.slow
def test_a_letter_that_does_not_arrive_is_not_added() -> None:
    def reaches(t: int, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.asarray((edges[:, 0] != 2) | (t != 2))

    stepping = Stepping(KEYS | {"peers": 3}, reaches, problem=problem("three", SIZES))
    s = stepping.to(ROUNDS)
    assert (s.v[:2, 2, 2] == 0).all()
    assert (s.v[:2, [1, 3], 2] != 0).any()
    assert not s.trees[:2, 2, -1].any()


@pytest.mark.long
def test_nodes_and_a_restart_are_one_process_with_out_of_fold_rows(tmp_path: Path) -> None:
    """Byte for byte; the letters of each round are new trees."""
    flat = DIGITS | {"method": "boosting", "num-server-rounds": 3}
    one = run(flat, tmp_path / "one")
    half = run(flat, tmp_path / "other", 3, until=2)
    other = run(flat, tmp_path / "other", [[0, 1], [2]], after=half)
    assert not one.refused
    for t in (1, 2, 3):
        for name in ("test_loss", "test_accuracy", "bytes_sent", "gradient_evaluations"):
            assert (one.metric(name, t) == other.metric(name, t)).all()
        assert (one.weights(t) == other.weights(t)).all()
        assert (one.metric("bytes_sent", t) == t * one.metric("bytes_sent", 1)).all()
        assert (one.metric("gradient_evaluations", t) == 40 * t).all()


@pytest.mark.long
def test_a_hostile_tree_costs_its_sender_its_letters(tmp_path: Path) -> None:
    flat = DIGITS | {
        "method": "boosting", "num-server-rounds": 2, "peers": 4, "attack.peers": "0",
    }  # fmt: skip
    hostile = run(flat | {"attack.kind": "gaussian"}, tmp_path / "hostile", 2)
    absent = run(flat | {"attack.kind": "nan"}, tmp_path / "absent", 2)
    assert (hostile.metric("test_loss")[1:] == absent.metric("test_loss")[1:]).all()
    assert (hostile.weights(2)[1:, 0] == 0).all()
    assert all(hostile.reports[1, peer].metrics["refused_models"] for peer in (1, 2, 3))


@pytest.mark.long
def test_a_saved_and_an_exported_model_predict_as_evaluated(tmp_path: Path) -> None:
    flat = DIGITS | {"method": "boosting", "num-server-rounds": 2}
    result = run(flat, tmp_path)
    toy = problem_of(result.config)
    model = personal_model(tmp_path, 0)
    raw = torch.tensor(toy.inputs[toy.test.rows[0]])
    targets = torch.tensor(toy.test.targets[0])
    loss = torch.nn.functional.cross_entropy(model(raw), targets).item()
    assert loss == pytest.approx(result.metric("test_loss")[0], abs=1e-6)
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    there = torch.tensor(session.run(None, {"raw": raw[:5].float().numpy()})[0])
    assert torch.allclose(there, model(raw[:5]), atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"model": "mlp"}, 'set model = "boosted-trees", or choose stacking'),
        ({"model": "logistic"}, 'model = "logistic" is not made of'),
        ({"model": "forest"}, 'model = "forest" is not made of'),
        ({"privacy.kind": "examples"}, "is fitted by .* at once: noise is added to gradients"),
        ({"letters.scheme": "increments"}, "does not offer whole models"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config.from_flat(DIGITS | {"method": "boosting"} | keys)


def test_a_policys_limit_counts_the_trees_of_all_rounds() -> None:
    most = partial(max_parameters, Policy())
    one, ten = (
        most(Config.from_flat(DIGITS | {"method": "boosting", "num-server-rounds": rounds}))
        for rounds in (1, 10)
    )
    assert ten == pytest.approx(one / 10, rel=0.01)
