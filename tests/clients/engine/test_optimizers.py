"""Optimizers on stacked parameters against torch.optim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.clients.engine import optimizers
from coterie.clients.engine.optimizers import COUNT, OptState
from coterie.clients.training import RateSchedule, Training

RATE = 0.05
TRAININGS = {
    "sgd": Training(),
    "momentum": Training(momentum=0.9),
    "sgd, weight decay": Training(weight_decay=0.05),
    "momentum, weight decay": Training(momentum=0.5, weight_decay=0.05),
    "adam": Training(optimizer="adam"),
    "adam, weight decay": Training(optimizer="adam", weight_decay=0.05),
    "adamw": Training(optimizer="adamw", weight_decay=0.05),
    "rmsprop": Training(optimizer="rmsprop"),
    "rmsprop, momentum, weight decay": Training(
        optimizer="rmsprop", momentum=0.5, weight_decay=0.05
    ),
}


def gradient(step: int, x_ed: torch.Tensor) -> torch.Tensor:
    g = torch.Generator().manual_seed(step)
    return torch.randn(x_ed.shape, dtype=torch.float64, generator=g).to(x_ed.dtype) * (step + 1)


def of_torch(training: Training, x_ed: torch.Tensor) -> torch.optim.Optimizer:
    keys: dict[str, Any] = {"lr": RATE, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        return torch.optim.Adam([x_ed], **keys)
    if training.optimizer == "adamw":
        return torch.optim.AdamW([x_ed], **keys)
    kind = torch.optim.RMSprop if training.optimizer == "rmsprop" else torch.optim.SGD
    return kind([x_ed], momentum=training.momentum, **keys)


def step(training: Training, x_ed: torch.Tensor, g_ed: torch.Tensor, state: OptState) -> None:
    """One step of whole rows."""
    rows = {name: [value] for name, value in state.items()}
    optimizers.step(training, RATE, [x_ed], [g_ed], rows, [training.weight_decay])


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
        assert difference < (1e-13 if dtype == torch.float64 else 1e-6)


SHAPES = [(3, 4), (3,), (2, 3), (2,)]
"""A network of two linear layers."""


@pytest.mark.parametrize("name", [name for name in TRAININGS if "decay" in name or "adamw" in name])
def test_decay_of_weights_alone_equals_torchs_parameter_groups(name: str) -> None:
    """As tensors, and as rows of the same values."""
    training = replace(TRAININGS[name], weight_decay_on="weights")
    models = [gradient(k, torch.zeros(2, *shape).double()) for k, shape in enumerate(SHAPES)]
    twins = [x.clone().requires_grad_() for x in models]
    rows = torch.cat([x.flatten(1) for x in models], dim=1)
    of_tensors = [optimizers.opt_state(training, x) for x in models]
    of_rows = optimizers.opt_state(training, rows)
    kinds = [
        (training, twins[::2]),
        (replace(training, weight_decay=0.0), twins[1::2]),
    ]
    groups = [of_torch(kind, x) for kind, group in kinds for x in group]
    decay = optimizers.row_decay(training, SHAPES, rows)
    for number in range(20):
        gradients = [gradient(10 * number + k, x) for k, x in enumerate(models)]
        for twin, g in zip(twins, gradients, strict=True):
            twin.grad = g
        for optimizer in groups:
            optimizer.step()
        memory = {key: [state[key] for state in of_tensors] for key in of_rows}
        if COUNT in memory:
            memory[COUNT] = memory[COUNT][:1]
        optimizers.step(
            training, RATE, models, gradients, memory, optimizers.decays(training, SHAPES)
        )
        row = torch.cat([g.flatten(1) for g in gradients], dim=1)
        of_row = {key: [value] for key, value in of_rows.items()}
        optimizers.step(training, RATE, [rows], [row], of_row, [decay])
        for x, twin in zip(models, twins, strict=True):
            torch.testing.assert_close(x, twin.data, rtol=1e-11, atol=1e-12)
        as_row = torch.cat([x.flatten(1) for x in models], dim=1)
        torch.testing.assert_close(rows, as_row, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", TRAININGS)
def test_each_model_takes_its_own_steps(name: str) -> None:
    """A model whose neighbour takes twice as many steps is where it would be alone."""
    training = TRAININGS[name]
    x_ed = gradient(99, torch.zeros(2, 7, dtype=torch.float64))
    opt_state, alone = optimizers.opt_state(training, x_ed), x_ed[1:].clone()
    state_of_last = optimizers.opt_state(training, alone)
    for number in range(6):
        g_ed, at = gradient(number, x_ed), slice(number % 2, 2)
        part = {name: value[at] for name, value in opt_state.items()}
        step(training, x_ed[at], g_ed[at], part)
        step(training, alone, g_ed[1:], state_of_last)
        assert torch.equal(x_ed[1:], alone)
    for key, value in state_of_last.items():
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


@pytest.mark.parametrize("warm_up", [0, 3])
def test_cosine_is_torchs(warm_up: int) -> None:
    training = Training(
        learning_rate=RATE, learning_rate_schedule="cosine", num_server_rounds=12,
        warm_up_rounds=warm_up,
    )  # fmt: skip
    optimizer = of_torch(training, torch.zeros(1, requires_grad=True))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 - warm_up)
    for t in range(1 + warm_up, 13):
        assert training.rate(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        schedule.step()
    assert training.rate(20) == training.rate(12) > 0


@pytest.mark.parametrize("a", [0, 7])
def test_inverse_time_gives_the_steps_of_convergence_proofs(a: int) -> None:
    """C / (mu (t + a)), t from 1, C = 2, mu = 0.5: a = 0 is All-for-one's theorem 2."""
    c, mu = 2.0, 0.5
    training = Training(
        learning_rate=c / (mu * (a + 1)), learning_rate_schedule="inverse-time",
        learning_rate_decay_every=a + 1,
    )  # fmt: skip
    for t in range(1, 10):
        assert training.rate(t) == pytest.approx(c / (mu * (t + a)), rel=1e-14)


@pytest.mark.parametrize("schedule", ["step", "cosine", "inverse-time", "horizon"])
def test_warm_up_rises_to_the_start_of_the_schedule(schedule: RateSchedule) -> None:
    """W = 4 rounds: a fifth, two, three and four fifths; then the schedule as without warm-up."""
    keys: dict[str, Any] = {"learning_rate": 0.5, "learning_rate_schedule": schedule}
    warm = Training(**keys, warm_up_rounds=4, num_server_rounds=20)
    cold = Training(**keys, num_server_rounds=16)
    rates = [warm.rate(t) for t in range(5)]
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4], rel=1e-15)
    assert [warm.rate(t + 4) for t in range(1, 17)] == [cold.rate(t) for t in range(1, 17)]


@pytest.mark.parametrize("rounds", [1, 2, 50, 5000])
def test_the_horizon_step_is_the_smaller_of_two(rounds: int) -> None:
    """min(1 / L, ln(T) / (mu T)), L = 4, mu = 0.5; before T = 3 the logarithm counts as 1."""
    large, mu = 4.0, 0.5
    training = Training(
        learning_rate=1 / large, learning_rate_schedule="horizon", num_server_rounds=rounds,
        learning_rate_decay_every=int(large / mu),
    )  # fmt: skip
    expected = min(1 / large, max(1.0, math.log(rounds)) / (mu * rounds))
    assert training.rate(1) == training.rate(rounds) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("clip", [0.5, 1e3])
def test_gradients_are_clipped_model_by_model(clip: float) -> None:
    """Over all tensors of a model; the second model's gradient is 100 times the first one's."""
    training = Training(gradient_clip=clip)
    models = [torch.zeros(2, 3, 4).double(), torch.zeros(2, 5).double()]
    gradients = [gradient(k, x) * torch.tensor([0.01, 1.0]).view(2, *[1] * (x.dim() - 1))
                 for k, x in enumerate(models)]  # fmt: skip
    twins = [torch.nn.ParameterList(x[e].clone() for x in models) for e in range(2)]
    optimizers.step(training, RATE, models, gradients, {}, [0.0, 0.0])
    for e, twin in enumerate(twins):
        for x, g in zip(twin, gradients, strict=True):
            x.grad = g[e].clone()
        torch.nn.utils.clip_grad_norm_(twin, clip)
        torch.optim.SGD(twin, lr=RATE).step()
        for x, expected in zip(models, twin, strict=True):
            torch.testing.assert_close(x[e], expected.data, rtol=1e-12, atol=0)
