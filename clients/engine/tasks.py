"""Tasks: loss, prediction and correctness of each example.

Legend: e = models, b = examples, k = classes or outputs, t = tokens, v = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task:
    """Loss and prediction rule of one kind of problem.

    Attributes
    ----------
    losses : callable
        Maps (outputs (E, b, ...), targets (E, b, ...)) to the loss of each example (E, b).
    correct : callable or None
        Maps (outputs, targets) to a score between 0 (wrong) and 1 (right) of each example; a
        fraction for tokens and for the Dice score. None for tasks without accuracy.
    predict : callable
        Maps outputs to predictions that ensembles average (class probabilities, or the outputs).
    ensemble_losses : callable
        Maps (averaged predictions, targets) to the loss of each example (E, b).
    certain : callable or None
        Maps (targets (E, b, ...), number of outputs k) to the targets as predictions (E, b, k);
        None if examples have no targets.
    slopes : callable or None
        Maps (outputs, targets, weights (E, b)) to the losses (E, b) and the gradient of their
        weighted sum with respect to the outputs; None: use autograd.
    """

    losses: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    predict: Callable[[Tensor], Tensor]
    ensemble_losses: Callable[[Tensor, Tensor], Tensor]
    certain: Callable[[Tensor, int], Tensor] | None
    slopes: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


def _cross_entropy(outputs_ebk: Tensor, targets_eb: Tensor) -> Tensor:
    flat = F.cross_entropy(outputs_ebk.flatten(0, -2), targets_eb.flatten(), reduction="none")
    return flat.view(targets_eb.shape)


def _cross_entropy_slopes(
    outputs_ebk: Tensor, targets_eb: Tensor, weights_eb: Tensor
) -> tuple[Tensor, Tensor]:
    """Return cross entropies and their gradients: probabilities minus 1 at the target."""
    logs_ebk, at_eb1 = outputs_ebk.log_softmax(dim=-1), targets_eb[..., None]
    losses_eb = -logs_ebk.gather(-1, at_eb1)[..., 0]
    weights_eb1 = weights_eb[..., None]
    return losses_eb, logs_ebk.exp_().mul_(weights_eb1).scatter_add_(-1, at_eb1, -weights_eb1)


def _likelihood(probabilities_ebk: Tensor, targets_eb: Tensor) -> Tensor:
    chosen = probabilities_ebk.gather(-1, targets_eb[..., None])[..., 0]
    return -chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()


def _agree(scores_ebk: Tensor, targets_eb: Tensor) -> Tensor:
    return scores_ebk.argmax(dim=-1) == targets_eb


def _over_tokens(each: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that averages `each` over the tokens of an example."""

    def mean(outputs_ebtv: Tensor, targets_ebt: Tensor) -> Tensor:
        values_ebt = each(outputs_ebtv, targets_ebt)
        return values_ebt.to(outputs_ebtv.dtype).mean(dim=-1)

    return mean


def _over_classes(scores: Tensor) -> Tensor:
    """Return the class probabilities of voxels (E, b, k, X, Y, Z)."""
    return scores.softmax(dim=2)


def _of_voxels(targets: Tensor, classes: int) -> Tensor:
    """Convert classes of voxels (E, b, X, Y, Z) to probabilities (E, b, k, X, Y, Z)."""
    return F.one_hot(targets, classes).movedim(-1, 2)


def _dice(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the Dice score of each volume (E, b), averaged over the classes except background (0).

    Twice the overlap over the sum of the sizes; 1 if a class is neither present nor predicted
    (Milletari, Navab, Ahmadi 2016, with sizes that are not squared).
    """
    predicted = probabilities[:, :, 1:].flatten(3)
    truth = _of_voxels(targets, probabilities.shape[2])[:, :, 1:].flatten(3).to(predicted.dtype)
    overlap, sizes = (predicted * truth).sum(dim=3), predicted.sum(dim=3) + truth.sum(dim=3)
    return ((2 * overlap + _SMOOTH) / (sizes + _SMOOTH)).mean(dim=2)


def _dice_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return 1 - _dice(_over_classes(scores), targets)


def _dice_score(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the Dice score of the most probable class of each voxel."""
    return _dice(_of_voxels(scores.argmax(dim=2), scores.shape[2]).to(scores.dtype), targets)


def _squared_error(outputs_ebk: Tensor, targets_ebk: Tensor) -> Tensor:
    return (outputs_ebk - targets_ebk).square().sum(dim=-1)


def _squared_error_slopes(
    outputs_ebk: Tensor, targets_ebk: Tensor, weights_eb: Tensor
) -> tuple[Tensor, Tensor]:
    away_ebk = outputs_ebk - targets_ebk
    return away_ebk.square().sum(dim=-1), 2 * weights_eb[..., None] * away_ebk


def _mean_squares(features: Tensor, targets_ebm: Tensor) -> Tensor:
    return (features.flatten(2) - targets_ebm).square().mean(dim=-1)


def _same(outputs: Tensor) -> Tensor:
    return outputs


def _own_value(outputs_eb: Tensor, _: Tensor) -> Tensor:
    return outputs_eb


def _own_value_slopes(outputs_eb: Tensor, _: Tensor, weights_eb: Tensor) -> tuple[Tensor, Tensor]:
    return outputs_eb, weights_eb


_SMOOTH = 1e-6  # voxels; only defines the score of an empty volume

TASKS = {
    "classification": Task(
        _cross_entropy,
        _agree,
        lambda o: o.softmax(dim=-1),
        _likelihood,
        F.one_hot,
        slopes=_cross_entropy_slopes,
    ),
    "regression": Task(
        _squared_error,
        None,
        _same,
        _squared_error,
        lambda t, _: t,
        slopes=_squared_error_slopes,
    ),
    "language": Task(
        _over_tokens(_cross_entropy),
        _over_tokens(_agree),
        lambda o: o.softmax(dim=-1),
        _over_tokens(_likelihood),
        F.one_hot,
    ),
    "segmentation": Task(
        _dice_loss, _dice_score, _over_classes, lambda p, t: 1 - _dice(p, t), _of_voxels
    ),
    # The model of a quadratic problem returns f_i(theta) itself.
    "quadratic": Task(_own_value, None, _same, _own_value, None, _own_value_slopes),
}

FEATURES = Task(_mean_squares, None, _same, _mean_squares, None)
"""Mean squared distance between the inputs of a network's last layer and targets (E, b, m)."""
