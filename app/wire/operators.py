"""Compression operators of increments: top-k, sign, low rank and int4.

An operator Q maps the difference x between a model and its public copy to fewer bytes. It is a
contraction, |x - Q(x)|^2 <= (1 - delta) |x|^2, and the length of its parts depends on the network
and `ratio` only, never on the data. With d numbers of b bytes:

top-k
    The k = ratio d largest entries. delta = k / d. Bytes b k + index, where the index is Elias-Fano
    (Elias 1974): about k (2 + log2(d / k)) / 8.
sign
    Per tensor of the network, |x|_1 / d sign(x) (Karimireddy et al. 2019).
    delta = |x|_1^2 / (d |x|_2^2). Bytes d / 8 + b per tensor.
low-rank
    Per matrix M (m, n), P P'M with P = orth(M Q) and Q the last P'M: a step of power iteration with
    warm start (PowerSGD, Vogels et al. 2019), of the largest rank r with r (m + n) <= ratio m n, at
    least 1. Vectors, and matrices that this does not shorten, are sent in full. Once Q has
    converged, delta >= r / min(m, n). Bytes b r (m + n).
int4
    Blocks of 32 numbers share an exponent, and each has 4 bits. delta >= 0.34; for normal numbers
    above 0.97. Bytes 17 / 32 d.

Reading is elementwise arithmetic: sender and readers compute the same bits on any machine.
Legend: d = numbers of a model, k = sent entries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.app.wire import quantise
from coterie.app.wire.payload import PayloadError
from coterie.app.wire.quantise import Layout

Ints = npt.NDArray[np.int64]
Shape = tuple[int, ...]


class Operator(ABC):
    """Compression operator for the flat models of a network with tensors of these `shapes`."""

    def __init__(self, shapes: Sequence[Shape], ratio: float) -> None:
        self.shapes, self.ratio = list(shapes), ratio
        self.sizes = [math.prod(shape) for shape in shapes]
        self.d = sum(self.sizes)

    @abstractmethod
    def layout(self, dtype: torch.dtype) -> Layout:
        """Return shape and type of each part."""

    @abstractmethod
    def encode(self, x_d: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the parts of Q(x), on the CPU, and the next memory."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return Q(x), (d,). PayloadError: the parts are not those of any x."""

    def memory(self, dtype: torch.dtype) -> Tensor:
        """Return the memory of a sender before its first increment; empty if it has none."""
        return torch.zeros(0, dtype=dtype)


class TopK(Operator):
    """The k largest entries of the whole model."""

    def __init__(self, shapes: Sequence[Shape], ratio: float) -> None:
        super().__init__(shapes, ratio)
        self.k = max(1, round(ratio * self.d))

    def layout(self, dtype: torch.dtype) -> Layout:
        indices = (sum(_index_bytes(self.k, self.d)),), torch.uint8
        return {"values": ((self.k,), dtype), "indices": indices}

    def encode(self, x_d: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        at = x_d.abs().topk(self.k).indices.sort().values
        packed = torch.from_numpy(packed_indices(at.cpu().numpy(), self.d))
        return {"values": x_d[at].cpu(), "indices": packed}, memory

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        at = unpacked_indices(parts["indices"].numpy(), self.k, self.d)
        x_d = torch.zeros(self.d, dtype=dtype)
        x_d[torch.from_numpy(at)] = parts["values"].to(dtype)
        return x_d


class Sign(Operator):
    """Signs, and the mean absolute value of each tensor."""

    def layout(self, dtype: torch.dtype) -> Layout:
        signs = (-(-self.d // 8),), torch.uint8
        return {"scales": ((len(self.sizes),), dtype), "signs": signs}

    def encode(self, x_d: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scales = torch.stack([part.abs().mean() for part in x_d.cpu().split(self.sizes)])
        signs = torch.from_numpy(np.packbits((x_d >= 0).cpu().numpy()))
        return {"scales": scales, "signs": signs}, memory

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        positive = np.unpackbits(parts["signs"].numpy(), count=self.d)
        signs_d = torch.from_numpy(positive).to(dtype) * 2 - 1
        return signs_d * parts["scales"].to(dtype).repeat_interleave(torch.tensor(self.sizes))


class Int4(Operator):
    """Four bits per number, and an exponent per block of 32."""

    def layout(self, dtype: torch.dtype) -> Layout:
        blocks = -(-self.d // quantise.BLOCK)
        return {"nibbles": ((-(-self.d // 2),), torch.uint8), "exponents": ((blocks,), torch.int8)}

    def encode(self, x_d: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        whole_1d, exponent_1b = quantise.microscaled(x_d.cpu()[None], 4)
        return {"nibbles": quantise.nibbles(whole_1d[0]), "exponents": exponent_1b[0]}, memory

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        whole_d = quantise.whole(parts["nibbles"], self.d)
        return quantise.scaled(whole_d.to(dtype)[None], parts["exponents"][None])[0]


class LowRank(Operator):
    """A step of power iteration on each matrix; vectors in full."""

    def __init__(self, shapes: Sequence[Shape], ratio: float) -> None:
        super().__init__(shapes, ratio)
        self._matrices = [_folded(shape, ratio) for shape in shapes]

    def layout(self, dtype: torch.dtype) -> Layout:
        sizes = [r * (m + n) if r else m * n for m, n, r in self._matrices]
        return {"factors": ((sum(sizes),), dtype)}

    def memory(self, dtype: torch.dtype) -> Tensor:
        g = torch.Generator().manual_seed(0)
        return torch.randn(sum(n * r for _, n, r in self._matrices), generator=g, dtype=dtype)

    def encode(self, x_d: Tensor, memory: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        warm = memory.split([n * r for _, n, r in self._matrices])
        factors, after = [], []
        for part, q, (m, n, r) in zip(x_d.split(self.sizes), warm, self._matrices, strict=True):
            if not r:
                factors.append(part)
                continue
            matrix = part.view(m, n)
            p_mr = torch.linalg.qr(matrix @ q.view(n, r).to(matrix)).Q
            q_nr = matrix.T @ p_mr
            factors += [p_mr.flatten(), q_nr.flatten()]
            after.append(q_nr.flatten() if q_nr.any() else q)
        return {"factors": torch.cat(factors).cpu()}, torch.cat(after) if after else memory

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        rest, result = parts["factors"].to(dtype), []
        for m, n, r in self._matrices:
            if not r:
                part, rest = rest.split([m * n, len(rest) - m * n])
                result.append(part)
                continue
            p, q, rest = rest.split([m * r, n * r, len(rest) - (m + n) * r])
            matrix = torch.zeros(m, n, dtype=dtype)
            for p_m, q_n in zip(p.view(m, r).T, q.view(n, r).T, strict=True):
                matrix += p_m[:, None] * q_n  # a matrix product's order of sums is the library's
            result.append(matrix.flatten())
        return torch.cat(result)


OPERATORS: Mapping[str, type[Operator]] = {
    "top-k": TopK, "sign": Sign, "low-rank": LowRank, "int4": Int4,
}  # fmt: skip
"""Operators by the value of letters.operator."""


def _folded(shape: Shape, ratio: float) -> tuple[int, int, int]:
    """Return (m, n, rank) of a tensor as a matrix; rank 0: sent in full."""
    m = shape[0] if shape else 1
    n = math.prod(shape[1:])
    if len(shape) < 2:
        return m, n, 0
    rank = max(1, int(ratio * m * n / (m + n)))
    return m, n, rank if rank * (m + n) < m * n else 0


def _index_bytes(k: int, d: int) -> tuple[int, int]:
    """Return the bytes of the low and of the high bits of k Elias-Fano indices below d."""
    low = _low_bits(k, d)
    return -(-k * low // 8), -(-(k + (d >> low) + 1) // 8)


def _low_bits(k: int, d: int) -> int:
    return max(0, (d // k).bit_length() - 1)


def packed_indices(at_k: Ints, d: int) -> npt.NDArray[np.uint8]:
    """Pack ascending indices below `d` by Elias-Fano: a length that depends on k and d only."""
    # Index i_j is divided into low bits, written as they are, and the rest h_j, for which bit h_j +
    # j is set.
    k, low = len(at_k), _low_bits(len(at_k), d)
    lows = (at_k[:, None] >> np.arange(low)) & 1
    highs = np.zeros(k + (d >> low) + 1, dtype=np.uint8)
    highs[(at_k >> low) + np.arange(k)] = 1
    return np.concatenate([np.packbits(lows.astype(np.uint8).ravel()), np.packbits(highs)])


def unpacked_indices(packed: npt.NDArray[np.uint8], k: int, d: int) -> Ints:
    """Return the indices of `packed_indices`; PayloadError if they are not `k` below `d`."""
    low, (low_bytes, _) = _low_bits(k, d), _index_bytes(k, d)
    lows = np.unpackbits(packed[:low_bytes], count=k * low).reshape(k, low).astype(np.int64)
    ones = np.flatnonzero(np.unpackbits(packed[low_bytes:]))
    if len(ones) == k:
        at_k: Ints = ((ones - np.arange(k)) << low) + (lows << np.arange(low)).sum(axis=1)
        if at_k[-1] < d and (np.diff(at_k) > 0).all():
            return at_k
    raise PayloadError(f"has indices that are not {k} ascending ones below {d}")
