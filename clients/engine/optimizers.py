"""Optimizers on stacked parameters, with torch.optim's semantics but counts and norms per model.

State is a dict of tensors with a leading axis of models, so that it is stored, sent to another
process and resumed like everything else a peer keeps.

Personal layers, which a method neither sends nor averages, are among the buffers of a peer's model,
with their optimizer state, like the running statistics of batch norm. Computing a gradient also
takes a step of the personal layers of the peer whose data it uses, as it updates the statistics;
dropping the buffers drops that step. Legend: e = models, d = parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from coterie.clients.training import Training

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim and the papers
ALPHA = 0.99  # RMSprop's smoothing, as in torch.optim
OptState = dict[str, Tensor]
Decay = float | Tensor
"""Weight decay of all values of a tensor, or of each column (d,) of rows."""
COUNT = "count"


def opt_state(training: Training, x_ed: Tensor) -> OptState:
    """Return fresh optimizer state for the models `x_ed`."""
    if training.optimizer in ("adam", "adamw"):
        return {
            "first": x_ed.new_zeros(x_ed.shape),
            "second": x_ed.new_zeros(x_ed.shape),
            COUNT: x_ed.new_zeros(len(x_ed)),
        }
    names = ["square"] if training.optimizer == "rmsprop" else []
    names += ["velocity"] if training.momentum else []
    return {name: x_ed.new_zeros(x_ed.shape) for name in names}


def decays(training: Training, shapes: Iterable[Sequence[int]]) -> list[float]:
    """Return the weight decay of each tensor of a model, given the tensors' shapes."""
    on_all = training.weight_decay_on == "all"
    return [training.weight_decay if on_all or len(shape) > 1 else 0.0 for shape in shapes]


def row_decay(training: Training, shapes: Sequence[Sequence[int]], like: Tensor) -> Decay:
    """Return the weight decay of rows with tensors of these shapes, on the device of `like`."""
    values = decays(training, shapes)
    if len({*values}) < 2:
        return next(iter(values), 0.0)
    columns = zip(shapes, values, strict=True)
    return torch.cat([like.new_full((math.prod(shape),), value) for shape, value in columns])


def step(
    training: Training,
    rate: float,
    models: Sequence[Tensor],
    gradients: Sequence[Tensor],
    opt_state: Mapping[str, Sequence[Tensor]],
    decays: Sequence[Decay],
) -> None:
    """Take one step down the gradients; change models and opt_state in place."""
    # Models and gradients are rows (E, d), or tensors (E, ...); `opt_state` is split like them, but
    # "count" may be a single tensor.
    if training.gradient_clip:
        gradients = clipped(gradients, training.gradient_clip)
    if training.optimizer == "adamw":
        for x, decay in zip(models, decays, strict=True):
            x.mul_(1 - rate * decay)
    elif training.weight_decay:
        gradients = [*map(_pulled, gradients, models, decays)]
    if training.optimizer in ("adam", "adamw"):
        for count in opt_state[COUNT]:
            count.add_(1)
        size, spread = rate / (1 - BETA1**count), 1 - BETA2**count
        moments = opt_state["first"], opt_state["second"]
        for x, g, first, second in zip(models, gradients, *moments, strict=True):
            each = -1, *[1] * (x.dim() - 1)
            first.lerp_(g, 1 - BETA1)
            second.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            root = (second / spread.view(each)).sqrt_().add_(EPSILON)
            x.sub_((size.view(each) * first).div_(root))
        return
    if training.optimizer == "rmsprop":
        squares = opt_state["square"]
        for square, g in zip(squares, gradients, strict=True):
            square.mul_(ALPHA).addcmul_(g, g, value=1 - ALPHA)
        gradients = [
            g / square.sqrt().add_(EPSILON) for square, g in zip(squares, gradients, strict=True)
        ]
    if training.momentum:
        # torch.optim starts the velocity at the first gradient, which is what 0 gives here.
        velocities = opt_state["velocity"]
        for velocity, g in zip(velocities, gradients, strict=True):
            velocity.mul_(training.momentum).add_(g)
        gradients = velocities
    torch._foreach_add_([*models], [*gradients], alpha=-rate)


def personal_buffers(training: Training, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return personal parameters (E, ...) by name, with fresh optimizer state."""
    memory = {
        f"{name}.{key}": moment
        for name, value in values.items()
        for key, moment in opt_state(training, value).items()
    }
    return {**values, **memory}


def personal_step(
    training: Training,
    rate: float,
    names: Sequence[str],
    buffers: Mapping[str, Tensor],
    gradients: Sequence[Tensor],
) -> dict[str, Tensor]:
    """Return personal parameters and their optimizer state after a step down their gradients."""
    after = {
        key: value.clone()
        for key, value in buffers.items()
        if key in names or key.rpartition(".")[0] in names
    }
    keys = opt_state(training, after[names[0]])
    memory = {key: [after[f"{name}.{key}"] for name in names] for key in keys}
    values = [after[name] for name in names]
    each = decays(training, (value.shape[1:] for value in values))
    step(training, rate, values, gradients, memory, each)
    return after


def _pulled(g: Tensor, x: Tensor, decay: Decay) -> Tensor:
    if isinstance(decay, Tensor):
        return torch.addcmul(g, x, decay)
    return g.add(x, alpha=decay) if decay else g


def clipped(gradients: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Scale each model's gradient to norm `clip` if it is longer, over all its tensors (E, ...)."""
    # Equal to torch.nn.utils.clip_grad_norm_, including its 1e-6 below the fraction.
    norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
    norms_e = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factors_e = (clip / (norms_e + 1e-6)).clamp_max(1.0)
    return [g * factors_e.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
