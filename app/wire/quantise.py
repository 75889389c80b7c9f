"""Reduced precision of tensors in letters: float16, bfloat16, int8 and int4.

"float16" and "bfloat16" halve a letter of float32. "int8" is the microscaling format MXINT8 (Open
Compute Project, 2023): blocks of 32 numbers share an exponent e, and each is a whole multiple of
2^e from -127 to 127, so an error is at most 1/127 of the largest in its block. "int4" has multiples
from -7 to 7, rounded up or down at random with the expectation of the number (as QSGD, Alistarh et
al. 2017): it is for gradients, whose errors then average out. A digest of the numbers seeds the
draws, which are the same on every node.

All peers see the same numbers, wherever they are hosted: an offered model is rounded before
any peer, its author included, reads it, and packing rounded numbers is exact. Tensors of fewer than
64 numbers (a cluster's number, mixture weights) are sent unchanged.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Reduced = Literal["float16", "bfloat16", "int8", "int4"]
TensorKind = tuple[tuple[int, ...], torch.dtype]
Layout = Mapping[str, TensorKind]
"""Name -> shape and type of each tensor in a letter."""

BLOCK = 32
_SMALL = 64
_LEAST, _MOST, _NOT_FINITE = -100, 121, -128
_SUFFIX = ".exponent"
_BITS: Mapping[str, int] = {"int8": 8, "int4": 4}


def travelling(layout: Layout, precision: Reduced) -> dict[str, TensorKind]:
    """Return the layout of packed letters for a `layout`."""
    result = dict[str, TensorKind]()
    for name, (shape, dtype) in layout.items():
        if not _is_reduced(shape, dtype):
            result[name] = shape, dtype
        elif precision in _BITS:
            size = torch.Size(shape).numel()
            nibbles = (-(-size // 2),), torch.uint8
            result[name] = nibbles if precision == "int4" else (shape, torch.int8)
            result[name + _SUFFIX] = (-(-size // BLOCK),), torch.int8
        else:
            result[name] = shape, getattr(torch, precision)
    return result


def rounded(tensors: Mapping[str, Tensor], precision: Reduced) -> dict[str, Tensor]:
    """Return stacked tensors (S, ...) rounded to the precision, as recipients see them."""
    return {
        name: _read(_written(value, precision), value)
        if _is_reduced(value.shape[1:], value.dtype)
        else value
        for name, value in tensors.items()
    }


def packed(tensors: Mapping[str, Tensor], row: int, precision: Reduced) -> dict[str, Tensor]:
    """Pack one row of stacked tensors for sending."""
    result = dict[str, Tensor]()
    for name, value in tensors.items():
        if not _is_reduced(value.shape[1:], value.dtype):
            result[name] = value[row]
            continue
        parts = _written(value[row : row + 1], precision)
        number = parts[0][0]
        result[name] = nibbles(number) if precision == "int4" else number.view(value.shape[1:])
        if len(parts) == 2:
            result[name + _SUFFIX] = parts[1][0]
    return result


def unpacked(
    tensors: Mapping[str, Tensor], layout: Layout, precision: Reduced
) -> dict[str, Tensor]:
    """Unpack the tensors of a received letter: the inverse of `packed`."""
    result = dict[str, Tensor]()
    for name, (shape, dtype) in layout.items():
        if not _is_reduced(shape, dtype):
            result[name] = tensors[name]
            continue
        size = torch.Size(shape).numel()
        flat = whole(tensors[name], size) if precision == "int4" else tensors[name].reshape(-1)
        parts = [flat[None]]
        if precision in _BITS:
            parts.append(tensors[name + _SUFFIX][None])
        result[name] = _read(tuple(parts), torch.empty((1, *shape), dtype=dtype))[0]
    return result


def _is_reduced(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and torch.Size(shape).numel() >= _SMALL


def _written(value: Tensor, precision: Reduced) -> tuple[Tensor, ...]:
    """Convert to the precision, (S, numbers); for integers also return exponents (S, blocks)."""
    flat_sd = value.flatten(1)
    if precision not in _BITS:
        dtype = getattr(torch, precision)
        most = torch.finfo(dtype).max
        return (flat_sd.clamp(-most, most).where(flat_sd.isfinite(), flat_sd).to(dtype),)
    draws = _draws(flat_sd) if precision == "int4" else None
    whole_sd, exponent_sb = microscaled(flat_sd, _BITS[precision], draws)
    return whole_sd.contiguous(), exponent_sb


def _draws(flat_sd: Tensor) -> Tensor:
    """Return uniform draws of the shape of `flat_sd`, seeded by a digest of each row."""
    rows = []
    for row_d in flat_sd.cpu():
        g = torch.Generator().manual_seed(zlib.crc32(row_d.contiguous().numpy().data))
        rows.append(torch.rand(len(row_d), generator=g, dtype=flat_sd.dtype))
    return torch.stack(rows).to(flat_sd.device) if rows else flat_sd


def nibbles(whole_d: Tensor) -> Tensor:
    """Pack whole numbers from -8 to 7, two per byte."""
    bytes_d = (whole_d + 8).to(torch.uint8)
    pairs = torch.nn.functional.pad(bytes_d, (0, len(bytes_d) % 2)).view(-1, 2)
    return pairs[:, 0] * 16 + pairs[:, 1]


def whole(nibbles_b: Tensor, size: int) -> Tensor:
    """Return the first `size` whole numbers of `nibbles`."""
    bytes_b = nibbles_b.to(torch.int16)
    return torch.stack([bytes_b // 16, bytes_b % 16], dim=1).flatten()[:size] - 8


def microscaled(
    flat_sd: Tensor, bits: int, draws_sd: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Round rows to whole multiples, of this many bits, of a power of two per block."""
    # The uniform draws (S, numbers) round a multiple up or down; None: to the nearest. Returns the
    # multiples (S, numbers), at most 2^(bits - 1) - 1 in size, and the exponents of the powers (S,
    # blocks), -128 for a block that is not finite; both int8.
    most = 2 ** (bits - 1) - 1
    blocks_sbk = _blocks(flat_sd)
    largest_sb = blocks_sbk.abs().amax(dim=2)
    fraction_sb, exponent_sb = torch.frexp(largest_sb)
    exponent_sb = exponent_sb - (bits - 1) + (fraction_sb > most / (most + 1))
    exponent_sb = exponent_sb.clamp(_LEAST, _MOST)
    whole_sbk = torch.ldexp(blocks_sbk, -exponent_sb[..., None])
    whole_sbk = whole_sbk.round() if draws_sd is None else (whole_sbk + _blocks(draws_sd)).floor()
    whole_sbk = whole_sbk.clamp(-most, most)
    finite_sb = largest_sb.isfinite()
    exponent_sb = exponent_sb.where(finite_sb, torch.full_like(exponent_sb, _NOT_FINITE))
    whole_sbk = whole_sbk.where(finite_sb[..., None], torch.zeros_like(whole_sbk))
    whole_sd = whole_sbk.flatten(1)[:, : flat_sd.shape[1]]
    return whole_sd.to(torch.int8), exponent_sb.to(torch.int8)


def scaled(whole_sd: Tensor, exponent_sb: Tensor) -> Tensor:
    """Return the numbers of `microscaled` in the type of `whole_sd`; NaN where not finite."""
    exponent_sb1 = exponent_sb.to(torch.int32)[..., None]
    scaled_sbk = torch.ldexp(_blocks(whole_sd), exponent_sb1)
    scaled_sbk = scaled_sbk.masked_fill(exponent_sb1 == _NOT_FINITE, torch.nan)
    return scaled_sbk.flatten(1)[:, : whole_sd.shape[1]]


def _read(parts: tuple[Tensor, ...], like: Tensor) -> Tensor:
    values_sd = parts[0].to(like.dtype)
    if len(parts) == 2:
        values_sd = scaled(values_sd, parts[1])
    return values_sd.reshape(like.shape)


def _blocks(flat_sd: Tensor) -> Tensor:
    """Split rows into blocks, (S, blocks, BLOCK); the last block is padded with zeros."""
    missing = -flat_sd.shape[1] % BLOCK
    blocks_sbk: Tensor = torch.nn.functional.pad(flat_sd, (0, missing)).unflatten(1, (-1, BLOCK))
    return blocks_sbk
