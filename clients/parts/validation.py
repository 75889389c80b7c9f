"""Model selection on validation data: each peer keeps the model with the smallest loss."""

from __future__ import annotations

from coterie.clients.hints import Buffers, Engine, Tensor
from coterie.datasets.problem import Problem

CHOOSES_WEIGHTS = "losses on private examples choose its weights"
CHOOSES_MODELS = "losses on private examples choose its models"
"""Reasons why differential privacy does not cover a method, see `coterie.clients.rule.Method`."""

Kept = dict[str, "Tensor"]
"""Models of the hosted peers: validation "loss" (P,), "x" (P, d), and "buffers.<name>" (P, ...)."""


def required(problem: Problem) -> None:
    """Reject a problem without validation examples."""
    if problem.validation.sizes.any():
        return
    if problem.validation_key:
        remedy = f"set {problem.validation_key} = 0.2"
    else:
        remedy = "choose another data set, or a method without validation"
    raise ValueError(
        f"needs validation data, but {problem.name} has no validation examples: {remedy}"
    )


def with_validation_loss(engine: Engine, x_pd: Tensor, buffers: Buffers) -> Kept:
    """Evaluate models on the validation data."""
    losses = engine.losses(x_pd, buffers, "validation").losses
    return {"loss": losses, "x": x_pd, **{f"buffers.{k}": v for k, v in buffers.items()}}


def better(engine: Engine, kept: Kept, new: Kept) -> Kept:
    """Return the kept models; the new ones where they are better, or of peers without such rows."""
    unmeasured_p = engine.data.shards["validation"].lengths_p == 0
    taken_p = (new["loss"] < kept["loss"]) | new["loss"].new_tensor(unmeasured_p).bool()
    return {
        name: value.where(taken_p.view(-1, *[1] * (value.dim() - 1)), kept[name])
        for name, value in new.items()
    }


def buffers_of(kept: Kept) -> Buffers:
    """Return the buffers of the kept models."""
    prefix = "buffers."
    return {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
