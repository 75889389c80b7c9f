"""Payload of a letter: a peer's tensors as bytes, checked before use.

The format is safetensors: names, types and shapes in a JSON header, then raw bytes. A received
payload is not trusted: names, types, shapes and finiteness are compared with the format of the run,
and a payload that differs is rejected. The header of a valid payload is known exactly, so it is
compared instead of parsed, and the tensors are views of the payload.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from coterie.app.wire import quantise
from coterie.app.wire.quantise import Layout, Reduced, TensorKind
from coterie.errors import Error

Precision = Literal["full"] | Reduced
"""Precision of tensors in letters; "full": the precision of the computation."""
RemoteLetters = dict[tuple[int, int | None], Mapping[str, Tensor]]
"""Tensors of letters from other nodes, by (sender, recipient); recipient None: an offer."""

_HEADER_PER_TENSOR = 512  # generous bound on safetensors' header
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class PayloadError(Error, ValueError):
    """Payload that does not match the format of the run; the message has the difference."""


class Readable(Protocol):
    """Format in which a node reads the letters of one kind."""

    @property
    def max_bytes(self) -> int:
        """Maximum size of a payload."""

    def decode(self, payload: bytes, sender: int) -> Mapping[str, Tensor]:
        """Decode the payload of a letter; raise PayloadError if it is not valid."""


class LetterFormat:
    """Encoder and decoder of the payloads of one kind of letter."""

    # `precision` is that of the tensors in the payload, except the `exact` ones.

    def __init__(
        self, layout: Layout, precision: Precision = "full", exact: Collection[str] = ()
    ) -> None:
        self.layout = dict(layout)
        self._reduced: Reduced | None = None if precision == "full" else precision
        self._exact = {name: entry for name, entry in layout.items() if name in exact}
        self._coarse = {name: entry for name, entry in layout.items() if name not in exact}
        travels = self.layout
        if self._reduced:
            travels = self._exact | quantise.travelling(self._coarse, self._reduced)
        # Wide types first, so that all numbers are aligned.
        names = sorted(travels, key=lambda name: (-travels[name][1].itemsize, name))
        self._travels: Layout = {name: travels[name] for name in names}
        self._header = _header(self._travels)
        self.nbytes = sum(map(_size, travels.values()))  # without the header: the cost of a letter
        self.max_bytes = self.nbytes + _HEADER_PER_TENSOR * (len(travels) + 1)  # of a payload

    def rounded(self, stacks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return stacked tensors (S, ...) rounded to the precision of the payload."""
        if not self._reduced:
            return stacks
        coarse = {name: stacks[name] for name in self._coarse}
        return {**stacks, **quantise.rounded(coarse, self._reduced)}

    def encode(self, stacks: Mapping[str, Tensor], row: int) -> bytes:
        """Encode one row of stacked tensors (P, ...), with a single copy."""
        rows = {name: value[row] for name, value in stacks.items()}
        if self._reduced:
            coarse = {name: stacks[name] for name in self._coarse}
            rows |= quantise.packed(coarse, row, self._reduced)
        flat = [rows[name].contiguous().cpu().reshape(-1) for name in self._travels]
        return b"".join([self._header, *(each.view(torch.uint8).numpy().data for each in flat)])

    def decode(self, payload: bytes, sender: int = -1) -> dict[str, Tensor]:
        """Decode a payload into tensors that can be read-only views of it, or PayloadError."""
        if payload.startswith(self._header) and len(payload) == len(self._header) + self.nbytes:
            tensors = _views(payload, len(self._header), self._travels)
        else:
            tensors = _parsed(payload, self._travels)
        if self._reduced:
            coarse = quantise.unpacked(tensors, self._coarse, self._reduced)
            tensors = {name: tensors[name] for name in self._exact} | coarse
        for name, value in tensors.items():
            # A finite sum shows without a mask that all numbers are finite.
            if value.is_floating_point() and not (value.sum().isfinite() or value.isfinite().all()):
                raise PayloadError(f'has numbers in "{name}" that are not finite')
        return tensors


def format_of(layout: Layout, precision: Precision = "full") -> LetterFormat:
    """Return the format of letters with a layout; cached."""
    return _format(tuple(layout.items()), precision)


@lru_cache(maxsize=16)
def _format(entries: tuple[tuple[str, TensorKind], ...], precision: Precision) -> LetterFormat:
    return LetterFormat(dict(entries), precision)


def layout_of(stacks: Mapping[str, Tensor]) -> Layout:
    """Return the layout of one row of stacked tensors (P, ...)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in stacks.items()}


def _parsed(payload: bytes, layout: Layout) -> dict[str, Tensor]:
    """Parse a valid payload of another safetensors writer, whose order may differ."""
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, KeyError) as error:
        raise PayloadError(f"is not safetensors: {error}") from None
    received = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    if received != dict(layout):
        raise PayloadError(f"holds {_text(received)}, expected {_text(layout)}")
    return tensors


def _views(payload: bytes, start: int, layout: Layout) -> dict[str, Tensor]:
    views = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that bytes must not be written to
        for name, (shape, dtype) in layout.items():
            count = torch.Size(shape).numel()
            if count:
                flat = torch.frombuffer(payload, dtype=dtype, count=count, offset=start)
                views[name] = flat.view(shape)
            else:
                views[name] = torch.empty(shape, dtype=dtype)
            start += _size(layout[name])
    return views


def _header(layout: Layout) -> bytes:
    """Return the first bytes of a payload with its tensors in this order."""
    entries, end = {}, 0
    for name, (shape, dtype) in layout.items():
        start, end = end, end + _size((shape, dtype))
        entries[name] = {
            "dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(entry: TensorKind) -> int:
    shape, dtype = entry
    return torch.Size(shape).numel() * dtype.itemsize


def _text(layout: Layout) -> str:
    return ", ".join(
        f"{k} {list(s)} {str(d).removeprefix('torch.')}" for k, (s, d) in layout.items()
    )
