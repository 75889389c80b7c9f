"""The tasks' losses, and their slopes against autograd."""

from __future__ import annotations

import pytest
import torch

from coterie.clients.engine.tasks import TASKS


@pytest.mark.parametrize("kind", ["classification", "regression", "quadratic"])
def test_slopes_are_those_of_autograd(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    shape = (3, 4) if kind == "quadratic" else (3, 4, 5)
    outputs = torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(3, 4, generator=g, dtype=torch.float64)
    targets = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)
    if kind == "classification":
        targets = torch.randint(5, (3, 4), generator=g)
    task = TASKS[kind]
    losses = task.losses(outputs, targets)
    (expected,) = torch.autograd.grad(losses, outputs, weights)
    assert task.slopes is not None
    losses_eb, slopes = task.slopes(outputs.detach(), targets, weights)
    assert torch.allclose(losses_eb, losses, rtol=1e-13)
    assert torch.allclose(slopes, expected, rtol=1e-13, atol=1e-16)


def test_a_language_loss_is_the_mean_over_tokens() -> None:
    g = torch.Generator().manual_seed(1)
    scores, targets = torch.randn(2, 3, 4, 5, generator=g), torch.randint(5, (2, 3, 4), generator=g)
    task = TASKS["language"]
    losses, right = task.losses(scores, targets), task.correct
    assert right is not None
    for e in range(2):
        for b in range(3):
            p = scores[e, b].exp() / scores[e, b].exp().sum(dim=1, keepdim=True)
            chosen = p[torch.arange(4), targets[e, b]]
            assert torch.isclose(losses[e, b], -chosen.log().mean())
            hits = sum(int(p[t].argmax() == targets[e, b, t]) for t in range(4))
            assert right(scores, targets)[e, b] == hits / 4
    assert torch.allclose(task.ensemble_losses(task.predict(scores), targets), losses)
    assert task.certain is not None
    assert task.ensemble_losses(task.certain(targets, 5).float(), targets).abs().max() < 1e-6


def test_dice_of_volumes_by_hand() -> None:
    """Two voxels of the class, three predicted, one in both: 2 * 1 / (2 + 3)."""
    targets = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0]).view(1, 1, 2, 2, 2)
    predicted = torch.tensor([0, 1, 1, 1, 0, 0, 0, 0]).view(1, 1, 2, 2, 2)
    task = TASKS["segmentation"]
    assert task.certain is not None
    assert task.correct is not None
    certain = task.certain(predicted, 2).float()
    assert certain.shape == (1, 1, 2, 2, 2, 2)
    assert torch.isclose(task.correct(certain, targets), torch.tensor(0.4)).all()
    assert torch.isclose(task.ensemble_losses(certain, targets), torch.tensor(0.6)).all()
    sure = 100 * certain  # softmax of it is nearly certain
    assert torch.isclose(task.losses(sure, targets), torch.tensor(0.6)).all()
    assert torch.isclose(task.losses(100.0 * task.certain(targets, 2), targets), torch.tensor(0.0))


def test_dice_is_a_mean_over_the_classes_that_are_not_background() -> None:
    targets = torch.tensor([0, 1, 2, 2]).view(1, 1, 4, 1, 1)
    task = TASKS["segmentation"]
    assert task.certain is not None
    assert task.correct is not None
    predictions = task.certain(torch.tensor([0, 1, 2, 0]).view(1, 1, 4, 1, 1), 3).float()
    assert torch.isclose(task.correct(predictions, targets), torch.tensor((1 + 2 / 3) / 2)).all()
    empty = torch.zeros_like(targets)
    assert torch.isclose(task.correct(task.certain(empty, 3).float(), empty), torch.tensor(1.0))


def test_a_regression_loss_is_the_squared_distance() -> None:
    """The loss of an example is the sum over its outputs."""
    outputs, targets = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 0.0, 6.0]]])
    assert TASKS["regression"].losses(outputs, targets).tolist() == [[13.0]]
