"""A linear layer of a single model whose weight takes its step in the backward pass.

A plain step down x dy needs the weight once more after the gradient of the inputs did. In pieces
that stay in the cache it is read once for both, and no gradient as large as itself is ever there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEAST = 1 << 16
"""Numbers of a weight that gains: what stays in the cache anyway would only pay for the call."""
_CELLS = 1 << 18
"""Numbers of a weight at a time."""


class _Descending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, rate: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rate = rate
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor, None]:
        x, weight = ctx.saved_tensors
        (dy,) = gradients
        rows, dy_rows = x.flatten(0, -2), dy.flatten(0, -2)
        dx = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        columns = max(1, _CELLS // len(weight))
        for first in range(0, weight.shape[1], columns):
            at = slice(first, first + columns)
            piece = weight[:, at]
            if dx is not None:
                dx[:, at] = dy_rows @ piece
            piece.addmm_(dy_rows.mT, rows[:, at], alpha=-ctx.rate)
        return None if dx is None else dx.view(x.shape), None, dy_rows.sum(dim=0), None


def linear(x: Tensor, weight: Tensor, bias: Tensor, rate: float) -> Tensor:
    """Outputs (..., o) of a linear layer for inputs (..., i).

    The weight (o, i) is no part of the graph: once the outputs are differentiated, it has moved by
    `rate` down its gradient. That may happen once.
    """
    found: Tensor = _Descending.apply(x, weight, bias, rate)
    return found
