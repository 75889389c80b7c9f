"""Mixed precision: matrix products and convolutions in bfloat16, everything else as it is.

The lists are those of torch.autocast. Autocast itself cannot be used: under vmap it leaves
convolutions as they are and, on the CPU, linear maps crash (torch 2.14). Parameters stay what they
are and so do their gradients, which come back through the conversion.
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
    """Inside, functions of `LOW` take and give bfloat16; those of `FULL` compute in float32.

    What a function of `FULL` gives has the type that it was given, so that activations between
    convolutions are small.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given: Any = args[0] if args else None
        if func in VOLUMES and given.device.type == "cpu":
            # The CPU's gradient of such a weight in bfloat16 is memory that nobody wrote.
            found: Tensor = func(*[_as(value, torch.float32) for value in args], **kwargs)
            return found.bfloat16()
        if func in LOW:
            return func(*(_as(value, torch.bfloat16) for value in args), **kwargs)
        if func in FULL:
            return func(given.float(), *args[1:], **kwargs).to(given.dtype)
        return func(*args, **kwargs)


def _as(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value
