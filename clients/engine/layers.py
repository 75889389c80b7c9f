"""Keyed dropout, mixed precision, and changes to a network before the engine runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

KEY, FIRST = "dropout_key", "dropout_first"

# Matrix products that round alike wherever their operands lie in memory: the same numbers however
# many models a node hosts, and whatever ran before. MKL reads the variable at its first product:
# here, as training and trained models import this module.
if "MKL_CBWR" not in os.environ:
    os.environ["MKL_CBWR"] = "AUTO"
    torch.ones(2, 2) @ torch.ones(2, 2)
    del os.environ["MKL_CBWR"]


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


LOW = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.prelu, torch.prelu,
    torch.conv1d, torch.conv2d, torch.conv3d, torch.matmul, Tensor.matmul, Tensor.__matmul__,
}  # fmt: skip
VOLUMES = {F.conv3d, torch.conv3d}
FULL = {F.batch_norm, F.group_norm, F.layer_norm, F.softmax, torch.softmax, Tensor.softmax}


class MixedPrecision(TorchFunctionMode):
    """Mode in which functions of `LOW` run in bfloat16, those of `FULL` in float32, others as ever.

    The lists are those of torch.autocast. Autocast itself cannot be used: under vmap it ignores
    convolutions and, on the CPU, linear maps crash (torch 2.14). Parameters keep their type, and so
    do their gradients, which are converted back.

    The result of a function of `FULL` has the type of its input, so that activations between
    convolutions stay small.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first: Any = args[0] if args else None
        if func in VOLUMES and first.device.type == "cpu":
            # On a CPU the bfloat16 gradient of such a weight is uninitialised memory.
            result: Tensor = func(*[_as(value, torch.float32) for value in args], **kwargs)
            return result.bfloat16()
        if func in LOW:
            return func(*(_as(value, torch.bfloat16) for value in args), **kwargs)
        if func in FULL:
            return func(first.float(), *args[1:], **kwargs).to(first.dtype)
        return func(*args, **kwargs)


def _as(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value
