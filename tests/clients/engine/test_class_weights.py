"""Weights of the classes in the training loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.clients.engine.engine import Engine
from coterie.clients.training import ClassWeights, Training
from coterie.datasets.problem import Problem, Split
from tests.inline import run
from tests.kit import digits, engine_of, stacked
from tests.problems import classification

BACKENDS = ("sequential", "batched", "vmapped")


def skewed() -> Problem:
    """Two peers of three classes: one has 9, 2 and 1 examples, the other 4 and 1 of two."""
    problem = classification((12, 5))
    labels = np.array([0] * 9 + [1] * 2 + [2]), np.array([2, 2, 0, 2, 2])
    return replace(problem, train=Split(problem.train.rows, labels))


def trained_by(problem: Problem, backend: str, weights: ClassWeights = "balanced") -> Engine:
    training = Training(batch_size=4, local_epochs=1, learning_rate=0.1, class_weights=weights)
    return engine_of(problem, "mlp", training=training, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_of_all_examples_is_the_mean_of_the_classes_gradients(backend: str) -> None:
    problem = skewed()
    engine = trained_by(problem, backend)
    x, buffers = engine.initial()
    both = engine.gradients(x, buffers, engine.data.everything()).values
    for peer, labels in enumerate(problem.train.targets):
        of_classes = []
        for label in np.unique(labels):
            at = labels == label
            rows = tuple(own[at] if p == peer else own for p, own in enumerate(problem.train.rows))
            targets = tuple(
                own[at] if p == peer else own for p, own in enumerate(problem.train.targets)
            )
            alone = trained_by(replace(problem, train=Split(rows, targets)), backend, "none")
            of_classes.append(alone.gradients(x, buffers, alone.data.everything()).values[peer])
        torch.testing.assert_close(both[peer], torch.stack(of_classes).mean(dim=0))


def test_the_weights_are_those_of_scikit_learn() -> None:
    problem = skewed()
    engine = trained_by(problem, "sequential")
    for batch in engine.batches(1):
        for e, count in enumerate(batch.counts_e):
            labels = problem.train.targets[e]
            known = np.unique(labels)
            weights = dict(
                zip(known, compute_class_weight("balanced", classes=known, y=labels), strict=True)
            )
            own = labels[batch.rows_eb[e, :count].numpy()]
            np.testing.assert_allclose(
                batch.weights_eb[e, :count], [weights[label] / count for label in own]
            )
            assert not batch.weights_eb[e, count:].any()


def test_some_of_the_peers_keep_their_weights() -> None:
    whole = trained_by(skewed(), "sequential")
    some = whole.narrowed(np.array([1]))
    for one, other in zip(some.batches(1), whole.batches(1, peers=np.array([1])), strict=True):
        assert torch.equal(one.weights_eb, other.weights_eb)


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluations_have_no_weights(backend: str) -> None:
    weighted, plain = (trained_by(skewed(), backend, w) for w in ("balanced", "none"))
    x, buffers = weighted.initial()
    one, other = (e.losses(x, buffers, "train", np.arange(2)) for e in (weighted, plain))
    assert torch.equal(one.losses, other.losses)


def test_equal_classes_change_nothing(tmp_path: Path) -> None:
    """Weights of 1: iid digits with as many examples of each class."""
    problem = classification((6, 6))
    labels = np.array([0, 1, 2] * 2), np.array([2, 1, 0] * 2)
    problem = replace(problem, train=Split(problem.train.rows, labels))
    weighted, plain = (trained_by(problem, "batched", w) for w in ("balanced", "none"))
    for one, other in zip(weighted.batches(1), plain.batches(1), strict=True):
        assert torch.equal(one.weights_eb, other.weights_eb)


def test_a_run_with_balanced_classes_is_another_run(tmp_path: Path) -> None:
    flat = digits("local", **{"partition.kind": "dirichlet"})
    plain = run(flat, tmp_path / "plain")
    weighted = run(flat | {"class-weights": "balanced"}, tmp_path / "weighted")
    assert not np.array_equal(stacked(plain), stacked(weighted))


def test_data_without_classes_are_refused() -> None:
    config = Config.from_flat({"dataset": "sine", "class-weights": "balanced", "peers": 2})
    with pytest.raises(ConfigError, match=r'class-weights = "balanced" requires classes'):
        check(config)
