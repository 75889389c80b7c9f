"""The tasks' losses, and their slopes against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.clients.engine.tasks import TASKS

SURVIVAL = TASKS["survival"]


def censored(*shape: int, intervals: int, seed: int = 2, events: float = 0.5) -> Tensor:
    """Targets of survival: intervals survived, event, and a time."""
    g = torch.Generator().manual_seed(seed)
    survived = torch.randint(intervals + 1, shape, generator=g)
    event = torch.rand(shape, generator=g) < events
    return torch.stack([survived, event, survived + 0.5], dim=-1).double()


@pytest.mark.parametrize("kind", ["classification", "regression", "quadratic", "survival"])
def test_slopes_are_those_of_autograd(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    shape = (3, 4) if kind == "quadratic" else (3, 4, 5)
    outputs = torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(3, 4, generator=g, dtype=torch.float64)
    targets = torch.randn(3, 4, 5, generator=g, dtype=torch.float64)
    if kind == "classification":
        targets = torch.randint(5, (3, 4), generator=g)
    if kind == "survival":
        targets = censored(3, 4, intervals=5)
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


def test_survival_without_censoring_is_a_classification_of_the_interval() -> None:
    """K hazards are K + 1 classes: P(k) = h_k prod (1 - h_j), and survival of all intervals."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 4, generator=g, dtype=torch.float64)
    targets = censored(3, 7, intervals=4, events=1)
    h = logits.sigmoid()
    shares = [h[..., k] * (1 - h[..., :k]).prod(dim=-1) for k in range(4)]
    probabilities = torch.stack([*shares, (1 - h).prod(dim=-1)], dim=-1)
    assert torch.allclose(probabilities.sum(dim=-1), torch.ones(3, 7, dtype=torch.float64))
    classes = TASKS["classification"]
    expected = classes.losses(probabilities.log(), targets[..., 0].long())
    assert torch.allclose(SURVIVAL.losses(logits, targets), expected, rtol=1e-12)
    ends = torch.stack([1 - probabilities[..., : k + 1].sum(dim=-1) for k in range(4)], dim=-1)
    assert torch.allclose(SURVIVAL.predict(logits), ends, rtol=1e-10)


def test_the_maximum_likelihood_of_a_constant_hazard_is_events_per_interval() -> None:
    """h = deaths / (deaths + intervals survived), the estimate of a geometric lifetime."""
    targets = censored(1, 200, intervals=5)
    died = (targets[..., 1] > 0) & (targets[..., 0] < 5)
    h = died.sum() / (died.sum() + targets[..., 0].sum())
    logits = h.logit().expand(1, 200, 5).clone().requires_grad_()
    SURVIVAL.losses(logits, targets).sum().backward()
    assert logits.grad is not None
    assert abs(logits.grad.sum()) < 1e-10


def test_an_example_censored_before_the_first_cut_says_nothing() -> None:
    logits = torch.tensor([[[3.0, -50.0, 90.0]]], requires_grad=True)
    loss = SURVIVAL.losses(logits, torch.tensor([[[0.0, 0.0, 0.9]]]))
    loss.sum().backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_an_event_after_the_last_cut_is_survival_until_then() -> None:
    logits = torch.randn(1, 1, 3, generator=torch.Generator().manual_seed(0))
    losses = [
        SURVIVAL.losses(logits, torch.tensor([[[3.0, event, 9.0]]])).item() for event in (0.0, 1.0)
    ]
    assert losses[0] == losses[1] == pytest.approx(-(-logits).sigmoid().log().sum().item())


def test_mixtures_of_one_survival_model_are_that_model() -> None:
    g = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, 50, 4, generator=g, dtype=torch.float64)
    targets = censored(2, 50, intervals=4)
    survival = SURVIVAL.predict(logits)
    expected = SURVIVAL.losses(logits, targets)
    assert torch.allclose(SURVIVAL.ensemble_losses(survival, targets), expected, rtol=1e-9)
    assert torch.allclose(SURVIVAL.scores(survival), logits, rtol=1e-6, atol=1e-6)


def test_observed_survival_is_kaplan_meier_on_average() -> None:
    """Self-consistency of Kaplan and Meier's estimate: Efron 1967."""
    targets = censored(2, 60, intervals=4)
    assert SURVIVAL.certain is not None
    observed = SURVIVAL.certain(targets, 4)
    for e in range(2):
        estimate = 1.0
        for k in range(4):
            n_died = ((targets[e, :, 0] == k) & (targets[e, :, 1] > 0)).sum()
            n_lived = int((targets[e, :, 0] > k).sum())
            estimate *= n_lived / (n_lived + int(n_died))
            assert observed[e, :, k].mean().item() == pytest.approx(estimate, rel=1e-12)
    padded = torch.cat([targets, torch.zeros(2, 9, 3, dtype=torch.float64)], dim=1)
    assert torch.equal(SURVIVAL.certain(padded, 4)[:, :60], observed)
