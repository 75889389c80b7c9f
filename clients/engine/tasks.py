"""Tasks: loss, prediction and correctness of each example, and limits of scores.

Legend: e = models, b = examples, k = classes, outputs or intervals, t = tokens, v = vocabulary, m =
members of an ensemble, r = rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.clients.letters import Floats

FINITE = 1e30
"""Limit of scores that only have to be finite."""
_ROUNDING = 1e-5  # relative; the same model's scores differ between formats and batches


@dataclass(frozen=True)
class Task:
    """Loss and prediction rule of one kind of problem.

    Another peer's scores in an ensemble have limits: their range on the rows that chose its weight.
    On a row unlike all held-out rows the scores of a member may be anything, so that a single leaf
    could decide the prediction alone. Clipped to the range that they had there, they have the
    influence that was tested. Softmax ignores a number that is added to all scores of a row, so
    that scores of classes are compared after subtracting their mean.
    """

    losses: Callable[[Tensor, Tensor], Tensor]
    """Maps (outputs (E, b, ...), targets (E, b, ...)) to the loss of each example (E, b)."""
    correct: Callable[[Tensor, Tensor], Tensor] | None
    """Maps (outputs, targets) to a score between 0 (wrong) and 1 (right) of each example; a
    fraction for tokens and for the Dice score. None for tasks without accuracy."""
    predict: Callable[[Tensor], Tensor]
    """Maps outputs to predictions that ensembles average (class probabilities, or the outputs)."""
    ensemble_losses: Callable[[Tensor, Tensor], Tensor]
    """Maps (averaged predictions, targets) to the loss of each example (E, b)."""
    certain: Callable[[Tensor, int], Tensor] | None
    """Maps (targets (E, b, ...), number of outputs k) to the targets as predictions (E, b, k); None
    if examples have no targets."""
    scores: Callable[[Tensor], Tensor]  # maps predictions to outputs; the inverse of `predict`
    slopes: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Maps (outputs, targets, weights (E, b)) to the losses (E, b) and the gradient of their
    weighted sum with respect to the outputs; None: use autograd."""
    ignores_shifts: bool = False
    """True if a number that is added to all outputs of a row changes nothing."""

    def ranges(self, outputs: Tensor) -> tuple[Floats, Floats]:
        """Return the lowest and highest scores (m, k) of the outputs (m, r, ..., k)."""
        scores_mrk = self._comparable(outputs.detach().cpu().double()).flatten(1, -2)
        if not scores_mrk.shape[1]:
            wide = np.full((len(scores_mrk), scores_mrk.shape[2]), FINITE)
            return -wide, wide
        low_mk, high_mk = (each.nan_to_num() for each in (scores_mrk.amin(1), scores_mrk.amax(1)))
        more_mk = _ROUNDING * torch.maximum(low_mk.abs(), high_mk.abs())
        return (low_mk - more_mk).numpy(), (high_mk + more_mk).numpy()

    def are_inside(self, outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Mark rows (..., 1) whose scores (..., k) are within limits that broadcast to them."""
        # Infinite limits hold everything, NaN too.
        scores = self._comparable(outputs)
        return (((scores >= low) & (scores <= high)) | low.isinf()).all(dim=-1, keepdim=True)

    def clipped(self, outputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the outputs, of rows beyond the limits the nearest scores within; 0 for NaN."""
        scores = self._comparable(outputs)
        finite = torch.where(scores.isnan(), torch.zeros_like(scores), scores)
        nearest = torch.minimum(torch.maximum(finite, low), high)
        return torch.where(self.are_inside(outputs, low, high), outputs, nearest)

    def _comparable(self, outputs: Tensor) -> Tensor:
        return outputs - outputs.mean(dim=-1, keepdim=True) if self.ignores_shifts else outputs


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
    return -_log(probabilities_ebk.gather(-1, targets_eb[..., None])[..., 0])


def _agree(scores_ebk: Tensor, targets_eb: Tensor) -> Tensor:
    return scores_ebk.argmax(dim=-1) == targets_eb


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def _over_tokens(each: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that averages `each` over the tokens of an example."""

    def mean(outputs_ebtv: Tensor, targets_ebt: Tensor) -> Tensor:
        values_ebt = each(outputs_ebtv, targets_ebt)
        return values_ebt.to(outputs_ebtv.dtype).mean(dim=-1)

    return mean


def _of_voxels(targets: Tensor, classes: int) -> Tensor:
    """Convert classes of voxels (E, b, X, Y, Z) to probabilities (E, b, k, X, Y, Z)."""
    return F.one_hot(targets, classes).movedim(-1, 2)


def _dice(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the Dice score of each volume (E, b), averaged over the classes but background (0)."""
    # Twice the overlap over the sum of the sizes; 1 if a class is neither present nor predicted
    # (Milletari, Navab, Ahmadi 2016, with sizes that are not squared).
    predicted = probabilities[:, :, 1:].flatten(3)
    truth = _of_voxels(targets, probabilities.shape[2])[:, :, 1:].flatten(3).to(predicted.dtype)
    overlap, sizes = (predicted * truth).sum(dim=3), predicted.sum(dim=3) + truth.sum(dim=3)
    return ((2 * overlap + _SMOOTH) / (sizes + _SMOOTH)).mean(dim=2)


def _squared_error(outputs_ebk: Tensor, targets_ebk: Tensor) -> Tensor:
    return (outputs_ebk - targets_ebk).square().sum(dim=-1)


def _squared_error_slopes(
    outputs_ebk: Tensor, targets_ebk: Tensor, weights_eb: Tensor
) -> tuple[Tensor, Tensor]:
    away_ebk = outputs_ebk - targets_ebk
    return away_ebk.square().sum(dim=-1), 2 * weights_eb[..., None] * away_ebk


def _lived_and_died(targets_eb3: Tensor, intervals: int) -> tuple[Tensor, Tensor]:
    """Return masks (E, b, k) of the intervals that examples survive, and of that of their event."""
    interval_k = torch.arange(intervals, device=targets_eb3.device)
    survived_eb1, event_eb1 = targets_eb3[..., :1], targets_eb3[..., 1:2]
    return interval_k < survived_eb1, (interval_k == survived_eb1) & (event_eb1 > 0)


def _hazard_losses(logits_ebk: Tensor, targets_eb3: Tensor) -> Tensor:
    """Return the negative log-likelihood of discrete-time hazards sigmoid(logits), (E, b)."""
    # Each interval that an example enters and that is observed to its end, or to the event, is a
    # Bernoulli trial (Gensheimer and Narasimhan 2019; Kvamme and Borgan 2021). It is a sum over
    # examples, unlike Cox's partial likelihood.
    lived_ebk, died_ebk = _lived_and_died(targets_eb3, logits_ebk.shape[-1])
    losses_ebk = F.softplus(torch.where(died_ebk, -logits_ebk, logits_ebk))
    return (losses_ebk * (lived_ebk | died_ebk)).sum(dim=-1)


def _hazard_slopes(
    logits_ebk: Tensor, targets_eb3: Tensor, weights_eb: Tensor
) -> tuple[Tensor, Tensor]:
    lived_ebk, died_ebk = _lived_and_died(targets_eb3, logits_ebk.shape[-1])
    slopes_ebk = logits_ebk.sigmoid() * (lived_ebk | died_ebk) - died_ebk.to(logits_ebk.dtype)
    return _hazard_losses(logits_ebk, targets_eb3), slopes_ebk * weights_eb[..., None]


def _survival(logits_ebk: Tensor) -> Tensor:
    """Return the probabilities of surviving the intervals up to each one, (E, b, k)."""
    return F.logsigmoid(-logits_ebk).cumsum(dim=-1).exp()


def _with_start(survival_ebk: Tensor) -> Tensor:
    return F.pad(survival_ebk, (1, 0), value=1.0)


def _hazard_logits(survival_ebk: Tensor) -> Tensor:
    died_ebk = _with_start(survival_ebk)[..., :-1] - survival_ebk
    return _log(died_ebk) - _log(survival_ebk)


def _survival_likelihood(survival_ebk: Tensor, targets_eb3: Tensor) -> Tensor:
    lived_ebj = _with_start(survival_ebk)  # j = k + 1 cut points, from time 0
    after_ebj = F.pad(survival_ebk, (0, 1))
    survived_eb1 = targets_eb3[..., :1].long()
    has_event_eb1 = (targets_eb3[..., 1:2] > 0) & (survived_eb1 < survival_ebk.shape[-1])
    shares_ebj = torch.where(has_event_eb1, lived_ebj - after_ebj, lived_ebj)
    return -_log(shares_ebj.gather(-1, survived_eb1)[..., 0])


def _observed_survival(targets_en3: Tensor, intervals: int) -> Tensor:
    """Return the observed survival (E, n, k): 1 before the event, 0 after it."""
    # After an example was censored, it is the Kaplan-Meier estimate of all n, given survival until
    # then: the mean over the examples is the Kaplan-Meier estimate (Efron 1967).
    lived_enk, died_enk = _lived_and_died(targets_en3, intervals)
    n_died_e1k = died_enk.sum(dim=-2, keepdim=True)
    n_trials_e1k = (lived_enk | died_enk).sum(dim=-2, keepdim=True)
    stays_e1k = 1 - n_died_e1k.to(targets_en3.dtype) / n_trials_e1k.clamp_min(1)
    stays_enk = torch.where(died_enk, 0.0, torch.where(lived_enk, 1.0, stays_e1k))
    return stays_enk.cumprod(dim=-1)


def _mean_squares(features: Tensor, targets_ebm: Tensor) -> Tensor:
    return (features.flatten(2) - targets_ebm).square().mean(dim=-1)


def _same(outputs: Tensor, *_: object) -> Tensor:
    return outputs


_SMOOTH = 1e-6  # voxels; only defines the score of an empty volume

TASKS = {
    "classification": Task(
        _cross_entropy,
        _agree,
        lambda o: o.softmax(dim=-1),
        _likelihood,
        F.one_hot,
        _log,
        slopes=_cross_entropy_slopes,
        ignores_shifts=True,
    ),
    "regression": Task(
        _squared_error,
        None,
        _same,
        _squared_error,
        _same,
        _same,
        slopes=_squared_error_slopes,
    ),
    "survival": Task(
        _hazard_losses,
        None,
        _survival,
        _survival_likelihood,
        _observed_survival,
        _hazard_logits,
        slopes=_hazard_slopes,
    ),
    "language": Task(
        _over_tokens(_cross_entropy),
        _over_tokens(_agree),
        lambda o: o.softmax(dim=-1),
        _over_tokens(_likelihood),
        F.one_hot,
        _log,
        ignores_shifts=True,
    ),
    "segmentation": Task(  # outputs (E, b, k, X, Y, Z)
        lambda o, t: 1 - _dice(o.softmax(dim=2), t),
        # of the most probable class of each voxel
        lambda o, t: _dice(_of_voxels(o.argmax(dim=2), o.shape[2]).to(o.dtype), t),
        lambda o: o.softmax(dim=2),
        lambda p, t: 1 - _dice(p, t),
        _of_voxels,
        _log,
    ),
    # The model of a quadratic problem returns f_i(theta) itself.
    "quadratic": Task(_same, None, _same, _same, None, _same, lambda o, _, w: (o, w)),
}

FEATURES = Task(_mean_squares, None, _same, _mean_squares, None, _same)
"""Mean squared distance between the inputs of a network's last layer and targets (E, b, m)."""
