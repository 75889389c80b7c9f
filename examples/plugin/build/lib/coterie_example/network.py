"""A network with batch norm and dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """The table [model-options].

    Attributes
    ----------
    width : units of the hidden layer.
    dropout : rate of dropout on them.
    """

    width: int = 32
    dropout: float = 0.1


class TwoLayers(nn.Module):
    """Two linear layers; a class (shape, outputs, options), as a function might be, too."""

    def __init__(self, shape: tuple[int, ...], outputs: int, options: Options) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), options.width)
        self.norm = nn.BatchNorm1d(options.width)
        self.drop = nn.Dropout(options.dropout)
        self.out = nn.Linear(options.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.out(self.drop(self.norm(self.hidden(x.flatten(1))).relu()))
        return scores
