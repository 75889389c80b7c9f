"""The step written by hand is the one that autograd takes."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.by_hand import Mlp, drawn

MODELS, BATCH, INPUTS, HIDDEN, OUTPUTS, RATE = 3, 5, 7, 6, 4, 0.3


def test_a_step_by_hand_is_a_step_down_autograd_s_gradient() -> None:
    torch.manual_seed(0)
    mlp = Mlp(*(value.double() for value in drawn(MODELS, INPUTS, HIDDEN, OUTPUTS)))
    x = torch.randn(MODELS, BATCH, INPUTS, dtype=torch.float64)
    y = torch.randint(OUTPUTS, (MODELS, BATCH))
    leaves = Mlp(*(value.clone().requires_grad_() for value in mlp))
    h = (x @ leaves.first.mT + leaves.first_bias).relu()
    scores = h @ leaves.second.mT + leaves.second_bias
    loss = MODELS * F.cross_entropy(scores.flatten(0, 1), y.flatten())  # a mean for each model
    gradients = torch.autograd.grad(loss, [*leaves])
    mlp.step(x, y, RATE)
    for after, before, gradient in zip(mlp, leaves, gradients, strict=True):
        torch.testing.assert_close(after, before - RATE * gradient)
