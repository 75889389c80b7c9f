"""kNN-Per: scikit-learn as a reference, and FedAvg as its limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from torch import nn

from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine
from coterie.clients.methods.knn_per import KNNPer, vote
from coterie.clients.models.build import build
from coterie.clients.models.options import MlpOptions
from coterie.datasets.problem import Problem
from tests.inline import Floats, run
from tests.kit import digits, engine_of, quadratic, stacked
from tests.problems import classification

SIZES, CLASSES = (23, 5, 12), 3  # one peer has fewer examples than neighbours
WIDTH = 6


def parts_of(engine: Engine, x_d: torch.Tensor) -> tuple[nn.Module, nn.Module]:
    """Split a peer's network into its body and its last layer."""
    module = build("mlp", MlpOptions(str(WIDTH)), "classification", (1, 4, 4), CLASSES).double()
    nn.utils.vector_to_parameters(x_d, module.parameters())
    assert isinstance(module, nn.Sequential)
    return module[:-1], module[-1]


def examples(problem: Problem, split: SplitName, peer: int) -> tuple[torch.Tensor, Floats]:
    part = getattr(problem, split)
    return torch.tensor((problem.inputs[part.rows[peer]] - 1.0) / 2.0), part.targets[peer]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("memory", [0, 1])  # 1 byte: one example per chunk
def test_it_predicts_what_scikit_learn_does(share: float, memory: int) -> None:
    problem = classification(SIZES, tests=(7, 9, 4), classes=CLASSES)
    engine = engine_of(problem, "mlp", MlpOptions(str(WIDTH)), memory=memory)
    rule = KNNPer(neighbours=10, lambda_=share).bind(engine, 1)
    state = replace(rule.init(), x=torch.randn(3, engine.d, dtype=torch.float64, generator=seed(1)))
    result = rule.evaluate(state, "test")
    for peer in range(3):
        below, last = parts_of(engine, state.x[peer])
        inputs, targets = examples(problem, "train", peer)
        neighbours = KNeighborsClassifier(
            n_neighbors=min(10, len(targets)), weights=lambda d: np.exp(-(d**2) / WIDTH)
        ).fit(below(inputs).detach().numpy(), targets)
        queries, truth = examples(problem, "test", peer)
        embedded = below(queries).detach()
        votes = np.zeros((len(truth), CLASSES))
        votes[:, neighbours.classes_] = neighbours.predict_proba(embedded.numpy())
        model = last(embedded).softmax(dim=1).detach().numpy()
        mixed = share * votes + (1 - share) * model
        assert float(result.accuracies[peer]) == (mixed.argmax(axis=1) == truth).mean()
        if share < 1:  # else a class without a neighbour has no probability, and no finite loss
            loss = -np.log(mixed[np.arange(len(truth)), truth]).mean()
            assert float(result.losses[peer]) == pytest.approx(loss, rel=1e-12)


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def test_values_are_mixed_like_labels() -> None:
    """With regression targets the vote is scikit-learn's weighted mean."""
    g = seed(2)
    keys, values = (torch.randn(1, 20, m, dtype=torch.float64, generator=g) for m in (4, 2))
    queries = torch.randn(1, 6, 4, dtype=torch.float64, generator=g)
    known = KNeighborsRegressor(n_neighbors=5, weights=lambda d: np.exp(-(d**2) / 4))
    expected = known.fit(keys[0].numpy(), values[0].numpy()).predict(queries[0].numpy())
    result = vote(queries, keys, values, torch.zeros(1, 20), 5)
    assert np.allclose(result[0].numpy(), expected, rtol=1e-12)


def test_a_training_example_is_not_its_own_neighbour() -> None:
    """With one neighbour and the whole vote, training accuracy is that of leave-one-out."""
    problem = classification(SIZES, classes=CLASSES)
    rule = KNNPer(neighbours=1, lambda_=1.0).bind(
        engine_of(problem, "mlp", MlpOptions(str(WIDTH))), 1
    )
    state = rule.init()
    result = rule.evaluate(state, "train").accuracies
    for peer in range(3):
        inputs, targets = examples(problem, "train", peer)
        keys = parts_of(rule.engine, state.x[peer])[0](inputs).detach()
        distances = torch.cdist(keys, keys).fill_diagonal_(torch.inf)
        right = targets[distances.argmin(dim=1).numpy()] == targets
        assert float(result[peer]) == right.mean()


def test_an_only_example_has_no_neighbour() -> None:
    problem = classification((1, 4), classes=CLASSES)
    rule = KNNPer(lambda_=0.5).bind(engine_of(problem, "mlp", MlpOptions(str(WIDTH))), 1)
    state = rule.init()
    model = rule.engine.losses(state.x, state.buffers, "train").losses
    result = rule.evaluate(state, "train").losses
    assert float(result[0]) == pytest.approx(float(model[0]) + np.log(2), rel=1e-12)


def test_without_a_vote_it_is_fedavg(tmp_path: Path) -> None:
    none = run(digits("knn-per", **{"knn-per.lambda": 0.0}), tmp_path / "knn")
    fedavg = run(digits("fedavg"), tmp_path / "fedavg")
    assert stacked(none).equal(stacked(fedavg))
    for split in ("test", "validation", "train"):
        accuracy, loss = (f"{split}_{score}" for score in ("accuracy", "loss"))
        assert np.array_equal(none.metric(accuracy), fedavg.metric(accuracy))
        assert np.allclose(none.metric(loss), fedavg.metric(loss), rtol=1e-6)
    assert np.array_equal(none.metric("global_test_loss"), fedavg.metric("test_loss"))


def test_the_global_model_is_reported_beside_the_vote(tmp_path: Path) -> None:
    result = run(digits("knn-per"), tmp_path / "knn")
    fedavg = run(digits("fedavg"), tmp_path / "fedavg")
    assert np.array_equal(result.metric("global_test_accuracy"), fedavg.metric("test_accuracy"))
    assert not np.array_equal(result.metric("test_loss"), fedavg.metric("test_loss"))


def test_without_labels_there_is_no_vote(tmp_path: Path) -> None:
    result = run(quadratic(tmp_path, "knn-per"), tmp_path / "knn")
    fedavg = run(quadratic(tmp_path, "fedavg"), tmp_path / "fedavg")
    assert np.array_equal(result.theta(), fedavg.theta())
    assert np.array_equal(result.metric("test_loss"), fedavg.metric("test_loss"))
