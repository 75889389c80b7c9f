"""Letters and offers as tensors by dotted name, as they lie in a node's files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.offers import Offers
from coterie.clients.letters import Ints, Letters

_ARRAYS = ("senders", "recipients", "rows", "authors", "ages", "expired")
"""Of `Letters`, beside the tensors."""


def pack(name: str, letters: Letters) -> dict[str, Tensor]:
    """Letters as tensors by dotted name."""
    ends = {k: getattr(letters, k) for k in _ARRAYS}
    packed = {f"{name}.{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in ends.items()}
    return packed | {f"{name}.tensors.{k}": v for k, v in letters.tensors.items()}


def unpack(name: str, packed: Mapping[str, Tensor], device: torch.device) -> Letters:
    """The inverse of `pack`."""
    ends = {k: packed[f"{name}.{k}"].numpy() for k in _ARRAYS}
    prefix = f"{name}.tensors."
    stacks = {
        k.removeprefix(prefix): v.to(device) for k, v in packed.items() if k.startswith(prefix)
    }
    return Letters(**ends, tensors=stacks)


def offers_in(
    tensors: Mapping[str, Tensor], kind: str, peers: Ints, own: Ints, device: torch.device
) -> Offers:
    """The offers of one kind in a file, of those hosted peers whose newest rows are there."""
    if f"{kind} of" not in tensors:
        return Offers()
    authors, prefix = tensors[f"{kind} by"].numpy(), f"{kind}."
    stacks = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    ours = np.isin(authors, peers[own])
    kept = Offers(stacks, authors, tensors[f"{kind} of"].numpy()).only(ours)
    on_device = {name: value.to(device) for name, value in kept.stacks.items()}
    return Offers(on_device, np.searchsorted(peers, kept.rows), kept.written)
