"""Network `two-layers` with batch norm and dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Options:
    """Options of the network: the table [model-options].

    Attributes
    ----------
    width : int
        Number of hidden units.
    dropout : float
        Dropout rate of the hidden units.
    """

    width: int = 32
    dropout: float = 0.1


class TwoLayers(nn.Module):
    """Network with two linear layers: a class with the arguments (shape, outputs, options)."""

    def __init__(self, shape: tuple[int, ...], outputs: int, options: Options) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), options.width)
        self.norm = nn.BatchNorm1d(options.width)
        self.drop = nn.Dropout(options.dropout)
        self.out = nn.Linear(options.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        scores: Tensor = self.out(self.drop(self.norm(self.hidden(x.flatten(1))).relu()))
        return scores
