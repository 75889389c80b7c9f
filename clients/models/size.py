"""Limit on the size of a network, checked before its memory is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from coterie.errors import Error

MAX_PARAMETERS = 2_000_000_000
"""Parameters of the largest network that is built, 8 GB in float32; GPT-2's largest has 1.6e9."""
_MAKERS = frozenset(
    (
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye),
        *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
        *(torch.rand_like, torch.randn_like, torch.arange, torch.linspace),
    )
)
"""Functions that make a tensor from a size; the parameters of torch's layers begin with them."""
_ELSEWHERE = ("generator", "out", "pin_memory")


class SizeError(Error, ValueError):
    """Error: a network is larger than allowed."""


class Limited(TorchFunctionMode):
    """Context that counts the elements of new tensors, and rejects them beyond a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = self._left = limit

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        options = dict(kwargs or {})
        if func in _MAKERS:
            plain = {key: value for key, value in options.items() if key not in _ELSEWHERE}
            self._left -= func(*args, **plain | {"device": "meta"}).numel()
            if self._left < 0:
                raise SizeError(f"it has more than {self._limit:,} parameters")
        return func(*args, **options)
