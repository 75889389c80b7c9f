"""Payloads of offers under letters.scheme = "increments": keyframes and increments.

A payload is a stamp (kind, version of the public copy after it, SHA-256 of that copy) and the
tensors. An increment has the parts of an operator. A first letter, version 1, has the model in the
precision of the payload, which is then the copy; a later keyframe has the whole copy in the
precision of the computation. A letter's other tensors are in all. The stamp is not part of the cost
of a letter, nor is the header of safetensors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.app.wire.operators import Operator
from coterie.app.wire.payload import LetterFormat, PayloadError, Precision
from coterie.app.wire.quantise import Layout, TensorKind

MODEL = "x"
"""Tensor of an offer that has a public copy: the peer's model."""
_STAMP = struct.Struct("<cI32s")
_FIRST, _KEY, _INCREMENT = b"f", b"k", b"i"
_PREFIX = MODEL + "."


class Copy(NamedTuple):
    """Public copy of a peer's model."""

    version: int  # number of letters in it; 0 before the first
    x: Tensor  # (d,)


class IncrementFormat:
    """Encoder and decoder of offers with a public copy, in the `precision` of the run."""

    def __init__(self, layout: Layout, operator: Operator, precision: Precision) -> None:
        self._operator, (self._shape, self._dtype) = operator, layout[MODEL]
        others = {name: entry for name, entry in layout.items() if name != MODEL}
        parts = operator.layout(self._dtype)
        self.first = LetterFormat(layout, precision)
        self.key = LetterFormat(layout, precision, exact=(MODEL,))
        self._parts = LetterFormat(parts, precision)
        named = {_PREFIX + name: entry for name, entry in parts.items()}
        self.increment = LetterFormat(others | named, precision)
        # Maximum size of a payload.
        self.max_bytes = max(self.key.max_bytes, self.increment.max_bytes) + _STAMP.size
        self._others = self.increment.nbytes - self._parts.nbytes

    @property
    def is_shorter(self) -> bool:
        """True if an increment is shorter than a first letter; else all letters are first ones."""
        return self.increment.nbytes < self.first.nbytes

    def whole(self, version: int) -> LetterFormat:
        """Return the format of a letter with the whole copy of a version."""
        return self.key if version > 1 and self.is_shorter else self.first

    def nbytes(self, version: int, known: int) -> int:
        """Return the cost of a letter to a reader of version `known`, increments or the copy."""
        whole = self.whole(version).nbytes
        if not known or known > version or not self.is_shorter:
            return whole
        return min(whole, self._others + (version - known) * self._parts.nbytes)

    def rounded(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return an operator's parts in the precision of the payload."""
        stacks = self._parts.rounded({name: value[None] for name, value in parts.items()})
        return {name: value[0] for name, value in stacks.items()}

    def encode(
        self,
        stacks: Mapping[str, Tensor],
        row: int,
        version: int,
        parts: Mapping[str, Tensor] | None = None,
    ) -> bytes:
        """Encode a row of stacked offers, whose `MODEL` is the copy, as increment or keyframe."""
        form = self.whole(version)
        kind = _INCREMENT if parts else _FIRST if form is self.first else _KEY
        stamp = _STAMP.pack(kind, version, digest(stacks[MODEL][row]))
        if not parts:
            return stamp + form.encode(stacks, row)
        rows = {name: value[row : row + 1] for name, value in stacks.items() if name != MODEL}
        rows |= {_PREFIX + name: value[None] for name, value in parts.items()}
        return stamp + self.increment.encode(rows, 0)

    def decode(self, payload: bytes, before: Copy, author: int) -> tuple[dict[str, Tensor], Copy]:
        """Return tensors of an offer and the copy after it; an increment is added to `before`."""
        kind, version, signed = _STAMP.unpack(payload[: _STAMP.size].ljust(_STAMP.size, b"\0"))
        body = payload[_STAMP.size :]
        if not version:
            raise PayloadError("is of version 0, before the first letter")
        if kind in (_FIRST, _KEY):
            tensors = (self.first if kind == _FIRST else self.key).decode(body)
        elif kind != _INCREMENT or not self.is_shorter:
            raise PayloadError("is neither a keyframe nor an increment")
        else:
            if before.x.shape != self._shape or before.version not in (version - 1, version):
                raise PayloadError(
                    f"adds to version {version - 1} of the public copy of peer {author}, and this "
                    f"node has version {before.version}; its next letter is a keyframe"
                )
            tensors = self.increment.decode(body)
            parts = {
                name.removeprefix(_PREFIX): tensors.pop(name)
                for name in list(tensors)
                if name.startswith(_PREFIX)
            }
            x_d = before.x  # a repeated request: its letter has been added
            if before.version < version:
                x_d = before.x + self._operator.decode(parts, self._dtype)
            if not bool(x_d.isfinite().all()):
                raise PayloadError(f'has numbers in "{MODEL}" that are not finite')
            tensors[MODEL] = x_d
        if digest(tensors[MODEL]) != signed:
            raise PayloadError(
                f"does not give the public copy that its author signed, peer {author}, version "
                f"{version}; its next letter is a keyframe"
            )
        return tensors, Copy(version, tensors[MODEL])


@lru_cache(maxsize=16)
def increment_format(
    entries: tuple[tuple[str, TensorKind], ...], operator: Operator, precision: Precision
) -> IncrementFormat:
    """Return the format of offers with a layout; cached."""
    return IncrementFormat(dict(entries), operator, precision)


def digest(x_d: Tensor) -> bytes:
    """Return the SHA-256 of a copy."""
    flat = x_d.contiguous().cpu().view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).digest()
