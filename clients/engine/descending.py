"""Plain steps of a single model in its backward pass, each as soon as its gradient is there.

It is still in the cache then, and gone before the next one comes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.clients.engine.forms import Wanted
from coterie.clients.engine.line import Passed

LEAST = 1 << 16
"""Numbers of a linear layer's weight from which on it goes in pieces."""
_CELLS = 1 << 18
"""Numbers of such a piece."""


class Descent:
    """Has each layer step down its gradient on the way back through a `Line`.

    Parameters
    ----------
    rate : learning rate.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, at: Passed, gradient: Tensor, wanted: bool) -> Tensor | None:
        own, trained = at.own, at.layer.trained
        linear = type(at.layer.module) is nn.Linear and "weight" in trained
        if linear and own["weight"].numel() >= LEAST:
            inputs = self._in_pieces(own["weight"], at.inputs, gradient, wanted)
            if "bias" in trained:
                own["bias"].add_(gradient.flatten(0, -2).sum(dim=0), alpha=-self._rate)
            return inputs
        inputs, found = at.back(gradient, Wanted(wanted, own=True, over=False))
        for name in trained:
            own[name].add_(found[name], alpha=-self._rate)
        return inputs

    def _in_pieces(self, weight: Tensor, x: Tensor, dy: Tensor, wanted: bool) -> Tensor | None:
        """The step of a weight (o, i), and the gradient of its inputs, which wants it as it was.

        In pieces that stay in the cache it is read once for both, and no gradient as large as
        itself is ever there.
        """
        rows, dy_rows = x.flatten(0, -2), dy.flatten(0, -2)
        dx = torch.empty_like(rows) if wanted else None
        columns = max(1, _CELLS // len(weight))
        for first in range(0, weight.shape[1], columns):
            at = slice(first, first + columns)
            piece = weight[:, at]
            if dx is not None:
                dx[:, at] = dy_rows @ piece
            piece.addmm_(dy_rows.mT, rows[:, at], alpha=-self._rate)
        return None if dx is None else dx.view(x.shape)
