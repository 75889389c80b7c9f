"""A letter's payload: one peer's tensors as bytes, checked before use.

The format is safetensors: names, types and shapes in a JSON header, then raw bytes. Nothing that
arrives is trusted: names, types, shapes and finiteness are compared with what a letter of this run
must hold, and one that differs is refused. The header of such a letter is known to the byte, so in
a good one it is compared, not parsed, and the numbers are used where they lie.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from coterie.app.wire import quantise
from coterie.app.wire.quantise import Entry, Layout, Reduced
from coterie.errors import Error

Precision = Literal["full"] | Reduced
"""In which tensors travel; "full" is that in which they are computed."""
Foreign = Mapping[tuple[int, int | None], Mapping[str, Tensor]]
"""Tensors of letters from other nodes by (sender, recipient); an offer's recipient is None."""

_HEADER_PER_TENSOR = 512  # generous bound on safetensors' header
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class PayloadError(Error, ValueError):
    """A payload is not one of this run; says how it differs."""


class LetterFormat:
    """Writes and reads the payloads of one kind of letter, and says how large they are.

    Parameters
    ----------
    layout : shape and type of each tensor.
    precision : in which the tensors travel.

    Attributes
    ----------
    nbytes : bytes of the tensors as they travel, without the header: what a letter is billed at.
    max_bytes : bytes that a payload may have at most.
    """

    def __init__(self, layout: Layout, precision: Precision = "full") -> None:
        self.layout = dict(layout)
        self._reduced: Reduced | None = None if precision == "full" else precision
        travels = quantise.travelling(layout, self._reduced) if self._reduced else self.layout
        # Those of wide numbers first, so that all numbers lie aligned.
        names = sorted(travels, key=lambda name: (-travels[name][1].itemsize, name))
        self._travels: Layout = {name: travels[name] for name in names}
        self._header = _header(self._travels)
        self.nbytes = sum(map(_size, travels.values()))
        self.max_bytes = self.nbytes + _HEADER_PER_TENSOR * (len(travels) + 1)

    def rounded(self, stacks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Stacked tensors (S, ...) as their readers will see them."""
        return quantise.rounded(stacks, self._reduced) if self._reduced else stacks

    def encode(self, stacks: Mapping[str, Tensor], row: int) -> bytes:
        """One row of stacked tensors (P, ...) as bytes; copied once, from where it lies."""
        if self._reduced:
            own = quantise.packed(stacks, row, self._reduced)
        else:
            own = {name: value[row] for name, value in stacks.items()}
        flat = [own[name].contiguous().cpu().reshape(-1) for name in self._travels]
        return b"".join([self._header, *(each.view(torch.uint8).numpy().data for each in flat)])

    def decode(self, payload: bytes) -> dict[str, Tensor]:
        """The tensors in a payload; not to be written to: they may lie in the payload itself.

        Raises
        ------
        PayloadError : it is no safetensors, or does not have exactly this layout, or is not finite.
        """
        if payload.startswith(self._header) and len(payload) == len(self._header) + self.nbytes:
            tensors = _views(payload, len(self._header), self._travels)
        else:
            tensors = _parsed(payload, self._travels)
        if self._reduced:
            tensors = quantise.unpacked(tensors, self.layout, self._reduced)
        for name, value in tensors.items():
            if value.is_floating_point() and not _is_finite(value):
                raise PayloadError(f'tensor "{name}" is not finite')
        return tensors


def format_of(layout: Layout, precision: Precision = "full") -> LetterFormat:
    """The format of letters of that layout, worked out once."""
    return _format(tuple(layout.items()), precision)


@lru_cache(maxsize=16)
def _format(entries: tuple[tuple[str, Entry], ...], precision: Precision) -> LetterFormat:
    return LetterFormat(dict(entries), precision)


def layout_of(stacks: Mapping[str, Tensor]) -> Layout:
    """The layout of one row of stacked tensors (P, ...)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in stacks.items()}


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers are; a sum that is says so in one pass and without a mask."""
    return bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())


def _parsed(payload: bytes, layout: Layout) -> dict[str, Tensor]:
    """What another writer of safetensors may have written, in another order."""
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, KeyError) as error:
        raise PayloadError(f"is not safetensors: {error}") from None
    found = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    if found != dict(layout):
        raise PayloadError(f"holds {_text(found)}, expected {_text(layout)}")
    return tensors


def _views(payload: bytes, start: int, layout: Layout) -> dict[str, Tensor]:
    """Tensors that lie in the payload, from `start` on."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that bytes must not be written to
        for name, (shape, dtype) in layout.items():
            count = torch.Size(shape).numel()
            if count:
                flat = torch.frombuffer(payload, dtype=dtype, count=count, offset=start)
                found[name] = flat.view(shape)
            else:
                found[name] = torch.empty(shape, dtype=dtype)
            start += _size(layout[name])
    return found


def _header(layout: Layout) -> bytes:
    """The first bytes of a payload whose tensors lie in this order."""
    entries, end = {}, 0
    for name, (shape, dtype) in layout.items():
        start, end = end, end + _size((shape, dtype))
        entries[name] = {
            "dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(entry: Entry) -> int:
    shape, dtype = entry
    return torch.Size(shape).numel() * dtype.itemsize


def _text(layout: Layout) -> str:
    return ", ".join(
        f"{k} {list(s)} {str(d).removeprefix('torch.')}" for k, (s, d) in layout.items()
    )
