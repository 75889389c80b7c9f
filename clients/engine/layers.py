"""Keyed dropout, and changes to a network before the engine runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

KEY, FIRST = "dropout_key", "dropout_first"


class Dropout(nn.Module):
    """Dropout whose mask is a pure function of a key, so that a peer's masks are its own.

    torch's dropout draws from one global stream; under vmap its masks would depend on which peers
    are stacked together. Here the engine writes a key per model and step into a buffer, and a
    counter hash (MurmurHash3's finaliser) turns key and position into a uniform number.
    `dropout_first` is the position of the first example in its minibatch, in a call with a part.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer(FIRST, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_many(x[None], getattr(self, KEY)[None], getattr(self, FIRST)[None])[0]

    def of_many(self, x_eb: Tensor, keys_e: Tensor, first_e: Tensor) -> Tensor:
        """Drop from the inputs (E, b, ...) of many models, each by its own key."""
        if not self.training or self.p == 0.0:
            return x_eb
        shape = x_eb.shape[1:]
        each = -1, *[1] * len(shape)
        position = torch.arange(shape.numel(), device=x_eb.device).view(shape)
        position = position + (first_e * (shape.numel() // shape[0])).view(each)
        uniform = hash32(hash32(position) ^ keys_e.view(each)).to(torch.float32) / 2**32
        return x_eb * (uniform >= self.p) / (1.0 - self.p)


def hash32(h: Tensor) -> Tensor:
    """Spread whole numbers over 0 to 2^32 - 1 (MurmurHash3's finaliser)."""
    low = 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & low
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """Replace torch's dropout in a module by `Dropout`."""
    if isinstance(module, nn.Dropout):
        return Dropout(module.p)
    for name, child in module.named_children():
        setattr(module, name, with_keyed_dropout(child))
    return module


def without_head(module: nn.Module) -> nn.Module:
    """Replace a module's last trained layer by one that does nothing."""
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    parent, _, child = trained[-1].rpartition(".")[0].rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return module
