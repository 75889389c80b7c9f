"""Mixed precision: matrix products and convolutions in bfloat16, other functions unchanged.

The lists are those of torch.autocast. Autocast itself cannot be used: under vmap it ignores
convolutions and, on the CPU, linear maps crash (torch 2.14). Parameters keep their type, and so do
their gradients, which are converted back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LOW = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.prelu, torch.prelu,
    torch.conv1d, torch.conv2d, torch.conv3d, torch.matmul, Tensor.matmul, Tensor.__matmul__,
}  # fmt: skip
VOLUMES = {F.conv3d, torch.conv3d}
FULL = {F.batch_norm, F.group_norm, F.layer_norm, F.softmax, torch.softmax, Tensor.softmax}


class MixedPrecision(TorchFunctionMode):
    """Mode in which functions of `LOW` run in bfloat16 and those of `FULL` in float32.

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
