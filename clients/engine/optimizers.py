"""Optimizers on stacked parameters, with the semantics of torch.optim's SGD and Adam.

State is a dict of tensors with a leading axis of models, so that it is stored, sent to another
process and resumed like everything else a peer keeps. Legend: e = models, d = parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from clients.training import Training

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim and the papers
OptState = dict[str, "Tensor"]


def opt_state(training: Training, x_ed: Tensor) -> OptState:
    """Fresh optimizer state for the models `x_ed`."""
    if training.optimizer == "adam":
        return {
            "first": x_ed.new_zeros(x_ed.shape),
            "second": x_ed.new_zeros(x_ed.shape),
            "count": x_ed.new_zeros(len(x_ed)),
        }
    return {"velocity": x_ed.new_zeros(x_ed.shape)} if training.momentum else {}


def step(training: Training, rate: float, x_ed: Tensor, g_ed: Tensor, opt_state: OptState) -> None:
    """One step down the gradients `g_ed`; the models and the opt_state are changed where they lie.

    Parameters
    ----------
    rate : the learning rate of this step, see `Training.rate`.
    """
    if training.weight_decay:
        g_ed = g_ed.add(x_ed, alpha=training.weight_decay)
    if training.optimizer == "adam":
        count = opt_state["count"].add_(1)
        first = opt_state["first"].lerp_(g_ed, 1 - BETA1)
        second = opt_state["second"].mul_(BETA2).addcmul_(g_ed, g_ed, value=1 - BETA2)
        size = rate / (1 - BETA1**count)
        root = (second / (1 - BETA2**count)[:, None]).sqrt_().add_(EPSILON)
        x_ed.sub_((size[:, None] * first).div_(root))
    elif training.momentum:
        # torch.optim starts the velocity at the first gradient, which is what 0 gives here.
        velocity = opt_state["velocity"].mul_(training.momentum).add_(g_ed)
        x_ed.sub_(velocity, alpha=rate)
    else:
        x_ed.sub_(g_ed, alpha=rate)
