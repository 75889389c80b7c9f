"""Optimizers on stacked parameters, with the semantics of torch.optim's SGD and Adam.

State is a dict of tensors with a leading axis of models, so that it is stored, sent to another
process and resumed like everything else a peer keeps. Legend: e = models, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from coterie.clients.training import Training

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim and the papers
OptState = dict[str, Tensor]
COUNT = "count"


def is_plain(training: Training) -> bool:
    """Whether a step is the gradient times the learning rate and nothing else."""
    return training.optimizer == "sgd" and not training.momentum and not training.weight_decay


def opt_state(training: Training, x_ed: Tensor) -> OptState:
    """Fresh optimizer state for the models `x_ed`."""
    if training.optimizer == "adam":
        return {
            "first": x_ed.new_zeros(x_ed.shape),
            "second": x_ed.new_zeros(x_ed.shape),
            COUNT: x_ed.new_zeros(len(x_ed)),
        }
    return {"velocity": x_ed.new_zeros(x_ed.shape)} if training.momentum else {}


def step(
    training: Training,
    rate: float,
    models: Sequence[Tensor],
    gradients: Sequence[Tensor],
    opt_state: Mapping[str, Sequence[Tensor]],
) -> None:
    """One step down the gradients; models and opt_state are changed where they lie.

    Parameters
    ----------
    rate : the learning rate of this step, see `Training.rate`.
    models, gradients : the rows (E, d), or tensor by tensor (E, ...).
    opt_state : each of its tensors, cut as the models are; "count" is a single one.
    """
    if training.weight_decay:
        pairs = zip(models, gradients, strict=True)
        gradients = [g.add(x, alpha=training.weight_decay) for x, g in pairs]
    if training.optimizer == "adam":
        count = opt_state[COUNT][0].add_(1)
        size, spread = rate / (1 - BETA1**count), 1 - BETA2**count
        moments = opt_state["first"], opt_state["second"]
        for x, g, first, second in zip(models, gradients, *moments, strict=True):
            each = -1, *[1] * (x.dim() - 1)
            first.lerp_(g, 1 - BETA1)
            second.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            root = (second / spread.view(each)).sqrt_().add_(EPSILON)
            x.sub_((size.view(each) * first).div_(root))
        return
    if training.momentum:
        # torch.optim starts the velocity at the first gradient, which is what 0 gives here.
        velocities = opt_state["velocity"]
        for velocity, g in zip(velocities, gradients, strict=True):
            velocity.mul_(training.momentum).add_(g)
        gradients = velocities
    torch._foreach_add_([*models], [*gradients], alpha=-rate)
