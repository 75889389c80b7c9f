"""A saved model predicts what the run's last evaluation measured, for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from coterie.app.config.preflight import problem_of
from coterie.app.config.registry import METHODS
from coterie.app.trained.export import export
from coterie.app.trained.personal import personal_model
from coterie.clients.engine.tasks import TASKS
from tests.inline import Run, run

COMMON: dict[str, Any] = {
    "peers": 3, "num-server-rounds": 3, "evaluate-every": 3, "device": "cpu", "batch-size": 8,
    "local-steps": 2, "learning-rate": 0.05,
}  # fmt: skip
DIGITS: dict[str, Any] = COMMON | {
    "dataset": "digits", "partition.clusters": 2, "partition.samples-per-peer": 24,
    "partition.validation": 0.25,
}  # fmt: skip
SINE: dict[str, Any] = COMMON | {"dataset": "sine", "model": "mlp", "dtype": "float64"}
NEEDS: dict[str, dict[str, Any]] = {
    "dpfl": {"dpfl.init-epochs": 1},
    "ifca": {"ifca.clusters": 2},
    "boosting": {"model": "boosted-trees", "boosted-trees.trees": 2},
    "partial-pooling": {
        "model": "linear",
        "partial-pooling.groups": 0,
        "dataset": "breast-cancer",
        "partition.clusters": 1,
    },
}
MIXTURES = ("fedem", "federico", "knn-per")


def assert_predicts_as_evaluated(result: Run) -> None:
    problem = problem_of(result.config)
    task = TASKS[problem.task]
    for peer in range(result.config.peers):
        model = personal_model(result.directory, peer)
        rows, targets = problem.test.rows[peer], torch.tensor(problem.test.targets[peer])[None]
        scores = model(torch.tensor(problem.inputs[rows]))[None]
        losses = task.losses(scores, targets)
        assert losses.mean().item() == pytest.approx(result.metric("test_loss")[peer], abs=1e-6)
        if task.correct is not None:
            right = task.correct(scores, targets).double().mean().item()
            assert right == pytest.approx(result.metric("test_accuracy")[peer], abs=1e-6)


@pytest.mark.some(7)
@pytest.mark.parametrize("method", METHODS)
def test_predict_is_evaluate_on_classes(method: str, tmp_path: Path) -> None:
    flat = DIGITS | {"method": method} | NEEDS.get(method, {})
    assert_predicts_as_evaluated(run(flat, tmp_path))


@pytest.mark.parametrize("method", ["fedavg", *MIXTURES])
def test_predict_is_evaluate_on_numbers(method: str, tmp_path: Path) -> None:
    assert_predicts_as_evaluated(run(SINE | {"method": method}, tmp_path))


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"), [("fedavg", "pt2"), ("fedem", "onnx"), ("knn-per", "onnx")]
)
def test_exported_models_say_the_same(method: str, kind: str, tmp_path: Path) -> None:
    result = run(DIGITS | {"method": method}, tmp_path)
    model = personal_model(tmp_path, 0)
    export(model, tmp_path / f"model.{kind}")
    problem = problem_of(result.config)
    raw = torch.tensor(problem.inputs[problem.test.rows[0][:5]], dtype=torch.float32)
    if kind == "pt2":
        there = torch.export.load(tmp_path / "model.pt2").module()(raw)
    else:
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        there = torch.tensor(session.run(None, {"raw": raw.numpy()})[0])
    assert torch.allclose(there, model(raw), atol=1e-5)
