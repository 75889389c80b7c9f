"""The size of a network, refused before its memory is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

MAX_PARAMETERS = 2_000_000_000
"""Parameters of the largest network that is built, 8 GB in float32: that of GPT-2 has 1.6 billion.
"""
_MAKERS = frozenset(
    (
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye),
        *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
        *(torch.rand_like, torch.randn_like, torch.arange, torch.linspace),
    )
)
"""What makes a tensor of nothing but a size: the parameters of all layers of torch begin so."""
_ELSEWHERE = ("generator", "out", "pin_memory")


class SizeError(ValueError):
    """A network is larger than it may be."""


class Limited(TorchFunctionMode):
    """Counts the numbers of new tensors, and refuses those beyond a limit.

    A context manager: what is made inside counts, before it is allocated.

    Parameters
    ----------
    limit : how many numbers all tensors may have together.
    """

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
        given = dict(kwargs or {})
        if func in _MAKERS:
            plain = {key: value for key, value in given.items() if key not in _ELSEWHERE}
            self._left -= func(*args, **plain | {"device": "meta"}).numel()
            if self._left < 0:
                raise SizeError(f"it has more than {self._limit:,} parameters")
        return func(*args, **given)
