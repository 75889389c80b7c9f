"""Optimizers on stacked parameters against torch.optim."""

from __future__ import annotations

import pytest
import torch

from coterie.clients.engine import optimizers
from coterie.clients.engine.optimizers import OptState
from coterie.clients.training import Training

RATE = 0.05
TRAININGS = {
    "sgd": Training(),
    "momentum": Training(momentum=0.9),
    "sgd, weight decay": Training(weight_decay=0.05),
    "momentum, weight decay": Training(momentum=0.5, weight_decay=0.05),
    "adam": Training(optimizer="adam"),
    "adam, weight decay": Training(optimizer="adam", weight_decay=0.05),
}


def gradient(step: int, x_ed: torch.Tensor) -> torch.Tensor:
    g = torch.Generator().manual_seed(step)
    return torch.randn(x_ed.shape, dtype=torch.float64, generator=g).to(x_ed.dtype) * (step + 1)


def of_torch(training: Training, x_ed: torch.Tensor) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam([x_ed], lr=RATE, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        [x_ed], lr=RATE, momentum=training.momentum, weight_decay=training.weight_decay
    )


def step(training: Training, x_ed: torch.Tensor, g_ed: torch.Tensor, state: OptState) -> None:
    """One step of whole rows."""
    rows = {name: [value] for name, value in state.items()}
    optimizers.step(training, RATE, [x_ed], [g_ed], rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TRAININGS)
def test_twenty_steps_equal_torch(name: str, dtype: torch.dtype) -> None:
    training = TRAININGS[name]
    x_ed = gradient(99, torch.zeros(3, 7, dtype=dtype))
    opt_state, twin = optimizers.opt_state(training, x_ed), x_ed.clone().requires_grad_()
    optimizer = of_torch(training, twin)
    for number in range(20):
        twin.grad = gradient(number, x_ed)
        step(training, x_ed, gradient(number, x_ed), opt_state)
        optimizer.step()
        assert x_ed.dtype == dtype
        difference = (x_ed - twin).abs().max() / twin.abs().max()
        assert difference < (1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("name", TRAININGS)
def test_each_model_takes_its_own_steps(name: str) -> None:
    """A model whose neighbour takes twice as many steps is where it would be alone."""
    training = TRAININGS[name]
    x_ed = gradient(99, torch.zeros(2, 7, dtype=torch.float64))
    opt_state, alone = optimizers.opt_state(training, x_ed), x_ed[1:].clone()
    own = optimizers.opt_state(training, alone)
    for number in range(6):
        g_ed, at = gradient(number, x_ed), slice(number % 2, 2)
        part = {name: value[at] for name, value in opt_state.items()}
        step(training, x_ed[at], g_ed[at], part)
        step(training, alone, g_ed[1:], own)
        assert torch.equal(x_ed[1:], alone)
    for key, value in own.items():
        assert torch.equal(opt_state[key][1:], value)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_step_leaves_the_gradient_alone(name: str) -> None:
    training = TRAININGS[name]
    x_ed = gradient(99, torch.zeros(2, 7, dtype=torch.float64))
    g_ed = gradient(1, x_ed)
    step(training, x_ed, g_ed, optimizers.opt_state(training, x_ed))
    assert torch.equal(g_ed, gradient(1, x_ed))


@pytest.mark.parametrize("every", [1, 3, 20])
def test_the_learning_rate_decays_as_torchs_step_lr(every: int) -> None:
    training = Training(learning_rate_decay=0.1, learning_rate_decay_every=every)
    optimizer = of_torch(training, torch.zeros(1, requires_grad=True))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, every, 0.1)
    assert training.rate(0) == training.learning_rate
    for t in range(1, 10):
        expected = training.learning_rate * optimizer.param_groups[0]["lr"] / RATE
        assert training.rate(t) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        schedule.step()
