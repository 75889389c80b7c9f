"""What lies inside an envelope: one peer's tensors as bytes, checked before use.

The format is safetensors: names, types and shapes in a JSON header, then raw bytes. Nothing that
arrives is trusted: names, types, shapes, size and finiteness are compared with what a letter of
this run must hold, and one that differs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and type of each tensor in a letter."""

_HEADER_PER_TENSOR = 512  # generous bound on safetensors' header


class PayloadError(ValueError):
    """A payload is not a letter of this run; says how it differs."""


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of one row of stacked tensors (P, ...)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in tensors.items()}


def nbytes(layout: Layout) -> int:
    """Bytes of the tensors in one letter, without the header."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in layout.values())


def largest(layout: Layout) -> int:
    """Bytes that an encoded letter may have at most."""
    return nbytes(layout) + _HEADER_PER_TENSOR * (len(layout) + 1)


def encode(tensors: Mapping[str, Tensor], row: int) -> bytes:
    """One row of stacked tensors as bytes."""
    return save({name: value[row].contiguous().cpu() for name, value in tensors.items()})


def decode(payload: object, layout: Layout) -> dict[str, Tensor]:
    """The tensors in a payload.

    Raises
    ------
    PayloadError : it is no safetensors, or does not have exactly this layout, or is not finite.
    """
    if not isinstance(payload, bytes):
        raise PayloadError(f"is {type(payload).__name__}, not bytes")
    if len(payload) > largest(layout):
        raise PayloadError(
            f"has {len(payload)} bytes, more than the {largest(layout)} a letter may have"
        )
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, KeyError) as error:
        raise PayloadError(f"is not safetensors: {error}") from None
    found = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    if found != dict(layout):
        raise PayloadError(f"holds {_text(found)}, expected {_text(layout)}")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise PayloadError(f'tensor "{name}" is not finite')
    return tensors


def _text(layout: Layout) -> str:
    return ", ".join(
        f"{k} {list(s)} {str(d).removeprefix('torch.')}" for k, (s, d) in layout.items()
    )
