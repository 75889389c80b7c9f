"""Model selection on validation data: each peer keeps the model with the lowest loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine
    from coterie.clients.engine.network import Buffers
    from coterie.datasets.problem import Problem

Kept = dict[str, "Tensor"]
"""A model of every peer: its validation "loss" (P,), "x" (P, d), and its buffers."""


def required(problem: Problem) -> None:
    """Refuse data without validation examples."""
    if problem.validation.sizes.any():
        return
    if problem.validation_key:
        remedy = f"set {problem.validation_key} = 0.2"
    else:
        remedy = "choose another data set, or a method that needs none"
    raise ValueError(
        f"peers judge models by validation loss, but {problem.name} sets no examples aside: "
        f"{remedy}"
    )


def with_validation_loss(engine: Engine, x_pd: Tensor, buffers: Buffers) -> Kept:
    """Models with their validation losses."""
    losses = engine.losses(x_pd, buffers, "validation").losses
    return {"loss": losses, "x": x_pd, **{f"buffers.{k}": v for k, v in buffers.items()}}


def better(engine: Engine, kept: Kept, new: Kept) -> Kept:
    """The kept models, or the new ones where their loss is lower or nothing measures it."""
    unmeasured_p = engine.data.shards["validation"].lengths_p == 0
    taken_p = (new["loss"] < kept["loss"]) | new["loss"].new_tensor(unmeasured_p).bool()
    return {
        name: value.where(taken_p.view(-1, *[1] * (value.dim() - 1)), kept[name])
        for name, value in new.items()
    }


def buffers_of(kept: Kept) -> Buffers:
    """The buffers that belong to its "x"."""
    start = "buffers."
    return {k.removeprefix(start): v for k, v in kept.items() if k.startswith(start)}
