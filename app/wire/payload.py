"""What lies inside an letter: one peer's tensors as bytes, checked before use.

The format is safetensors: names, types and shapes in a JSON header, then raw bytes. Nothing that
arrives is trusted: names, types, shapes, size and finiteness are compared with what a letter of
this run must hold, and one that differs is refused. The header of such a letter is known to the
byte, so in a good one it is compared, not parsed, and the numbers are used where they lie.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from app.wire.quantise import Entry, Layout, Precision, packed, travelling, unpacked

_HEADER_PER_TENSOR = 512  # generous bound on safetensors' header
_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class PayloadError(ValueError):
    """A payload is not a letter of this run; says how it differs."""


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of one row of stacked tensors (P, ...)."""
    return {name: (tuple(value.shape[1:]), value.dtype) for name, value in tensors.items()}


def nbytes(layout: Layout, precision: Precision = "full") -> int:
    """Bytes of the tensors in one letter as it travels, without the header."""
    return sum(_size(each) for each in travelling(layout, precision).values())


def largest(layout: Layout, precision: Precision = "full") -> int:
    """Bytes that an encoded letter may have at most."""
    travels = travelling(layout, precision)
    return nbytes(travels) + _HEADER_PER_TENSOR * (len(travels) + 1)


def encode(tensors: Mapping[str, Tensor], row: int, precision: Precision = "full") -> bytes:
    """One row of stacked tensors as bytes; copied once, from where it lies."""
    own = {name: v.contiguous().cpu() for name, v in packed(tensors, row, precision).items()}
    layout = {name: (tuple(v.shape), v.dtype) for name, v in own.items()}
    pieces = [own[name].reshape(-1).view(torch.uint8).numpy().data for name in _order(layout)]
    return b"".join([_header(layout), *pieces])


def decode(payload: object, layout: Layout, precision: Precision = "full") -> dict[str, Tensor]:
    """The tensors in a payload; not to be written to: they may lie in the payload itself.

    Raises
    ------
    PayloadError : it is no safetensors, or does not have exactly this layout, or is not finite.
    """
    if not isinstance(payload, bytes):
        raise PayloadError(f"is {type(payload).__name__}, not bytes")
    if len(payload) > largest(layout, precision):
        raise PayloadError(
            f"has {len(payload)} bytes, more than the {largest(layout, precision)} a letter may "
            "have"
        )
    travels = travelling(layout, precision)
    header = _header(travels)
    if payload.startswith(header) and len(payload) == len(header) + nbytes(travels):
        tensors = _views(payload, len(header), travels)
    else:
        tensors = _parsed(payload, travels)
    tensors = unpacked(tensors, layout, precision)
    for name, value in tensors.items():
        if value.is_floating_point() and not _is_finite(value):
            raise PayloadError(f'tensor "{name}" is not finite')
    return tensors


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
        for name in _order(layout):
            shape, dtype = layout[name]
            count = torch.Size(shape).numel()
            if count:
                flat = torch.frombuffer(payload, dtype=dtype, count=count, offset=start)
                found[name] = flat.view(shape)
            else:
                found[name] = torch.empty(shape, dtype=dtype)
            start += _size(layout[name])
    return found


def _header(layout: Layout) -> bytes:
    """The first bytes of a letter."""
    entries, end = {}, 0
    for name in _order(layout):
        (shape, dtype), start = layout[name], end
        end += _size(layout[name])
        entries[name] = {
            "dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _order(layout: Layout) -> list[str]:
    """Names, those of wide numbers first: so that all numbers lie aligned."""
    return sorted(layout, key=lambda name: (-layout[name][1].itemsize, name))


def _size(entry: Entry) -> int:
    shape, dtype = entry
    return torch.Size(shape).numel() * dtype.itemsize


def _text(layout: Layout) -> str:
    return ", ".join(
        f"{k} {list(s)} {str(d).removeprefix('torch.')}" for k, (s, d) in layout.items()
    )
