"""What becomes of a network's layers before the engine runs them, and where their tensors lie."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

KEY = "dropout_key"


class Dropout(nn.Module):
    """Dropout whose mask is a pure function of a key, so that a peer's masks are its own.

    torch's dropout draws from one global stream; under vmap its masks would depend on which
    peers happen to be stacked together. Here the engine writes a key per model and step into a
    buffer, and a counter hash (MurmurHash3's finaliser) turns key and position into a uniform.

    Attributes
    ----------
    first : where in its minibatch the first example lies, when only a part of it is shown.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.first = 0
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_many(x[None], getattr(self, KEY)[None])[0]

    def of_many(self, x_eb: Tensor, keys_e: Tensor) -> Tensor:
        """Drops from inputs of many models, each by its own key."""
        if not self.training or self.p == 0.0:
            return x_eb
        shape = x_eb.shape[1:]
        position = torch.arange(shape.numel(), device=x_eb.device).view(shape)
        if self.first:
            position = position + self.first * (shape.numel() // shape[0])
        keys = keys_e.view(-1, *[1] * len(shape))
        uniform = hash32(hash32(position) ^ keys).to(torch.float32) / 2**32
        return x_eb * (uniform >= self.p) / (1.0 - self.p)


def hash32(h: Tensor) -> Tensor:
    """MurmurHash3's finaliser: whole numbers spread over 0 to 2^32 - 1."""
    low = 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & low
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


def prepared(module: nn.Module) -> nn.Module:
    """The module with our dropout instead of torch's, and with ReLU after pooling.

    The largest value's ReLU is the largest of the ReLUs, with the same gradient, and there are
    fewer of it.
    """
    if isinstance(module, nn.Dropout):
        return Dropout(module.p)
    for name, child in module.named_children():
        setattr(module, name, prepared(child))
    if is_sequence(module):
        layers = module._modules
        for (one, before), (other, after) in pairwise(list(layers.items())):
            if isinstance(before, nn.ReLU) and isinstance(after, nn.MaxPool2d):
                layers[one], layers[other] = after, before
    return module


def without_head(module: nn.Module) -> nn.Module:
    """The module, its last layer that is trained replaced by one that does nothing."""
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    parent, _, child = trained[-1].rpartition(".")[0].rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return module


def is_plain(module: nn.Module) -> bool:
    """Whether calling it is all that its class says: nothing is hooked on or replaced."""
    hooks = (
        module._forward_pre_hooks, module._forward_hooks,
        module._backward_pre_hooks, module._backward_hooks,
    )  # fmt: skip
    return not any(hooks) and not {"forward", "train"} & {*vars(module)}


def is_sequence(module: nn.Module) -> bool:
    """Whether a module calls its children one after the other and does nothing else."""
    kind = type(module)
    as_it_was = kind.forward is nn.Sequential.forward and kind.train is nn.Module.train
    return as_it_was and not module._parameters and not module._buffers


def trains(layer: nn.Module) -> bool:
    """Whether it has trainable parameters of its own."""
    return any(value.requires_grad for value in layer.parameters(recurse=False))


def places(module: nn.Module, names: Collection[str]) -> list[tuple[str, dict[str, Any], str]]:
    """Where in its layers the tensors of a module lie; one that layers share lies in several."""
    named = {id(value): name for name, value in module.named_parameters()}
    named |= {id(value): name for name, value in module.named_buffers()}
    return [
        (named[id(value)], place, key)
        for layer in module.modules()
        for place in cast("list[dict[str, Any]]", [layer._parameters, layer._buffers])
        for key, value in place.items()
        if value is not None and named[id(value)] in names
    ]
