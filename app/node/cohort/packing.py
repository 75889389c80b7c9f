"""Pack letters and offers into tensors by dotted name, as in snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.offers import Offers
from coterie.clients.letters import Ints, Letters

_ARRAYS = ("senders", "recipients", "rows", "authors", "ages", "expired")
"""Arrays of `Letters` in addition to the tensors."""


class Piece(NamedTuple):
    """Rows of some peers in a snapshot.

    Attributes
    ----------
    own : ndarray of int
        Local indices of the peers in the cohort.
    rows : ndarray of int
        Rows of these peers in the snapshot.
    tensors : Mapping of str to Tensor
        The snapshot.
    """

    own: Ints
    rows: Ints
    tensors: Mapping[str, Tensor]


def packed(name: str, letters: Letters) -> dict[str, Tensor]:
    """Return letters as tensors by dotted name."""
    ends = {k: getattr(letters, k) for k in _ARRAYS}
    arrays = {f"{name}.{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in ends.items()}
    return arrays | {f"{name}.tensors.{k}": v for k, v in letters.tensors.items()}


def unpacked(name: str, tensors: Mapping[str, Tensor], device: torch.device) -> Letters:
    """Return the letters from the tensors of `packed`."""
    ends = {k: tensors[f"{name}.{k}"].numpy() for k in _ARRAYS}
    prefix = f"{name}.tensors."
    stacks = {
        k.removeprefix(prefix): v.to(device) for k, v in tensors.items() if k.startswith(prefix)
    }
    return Letters(**ends, tensors=stacks)


def packed_offers(kind: str, offers: Offers, peers: Ints) -> dict[str, Tensor]:
    """Return offers as tensors, with rounds and ids of their peers; empty without offers.

    Parameters
    ----------
    peers : ndarray of int, (P,)
        Ids of the hosted peers.
    """
    if not len(offers.rows):
        return {}
    return {
        **{f"{kind}.{name}": value for name, value in offers.stacks.items()},
        f"{kind} of": torch.from_numpy(offers.written),
        f"{kind} by": torch.from_numpy(peers[offers.rows]),
    }


def unpacked_offers(
    tensors: Mapping[str, Tensor], kind: str, peers: Ints, own: Ints, device: torch.device
) -> Offers:
    """Return the offers of one kind in a snapshot, of some hosted peers (local indices)."""
    if f"{kind} of" not in tensors:
        return Offers()
    authors, prefix = tensors[f"{kind} by"].numpy(), f"{kind}."
    stacks = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    ours = np.isin(authors, peers[own])
    kept = Offers(stacks, authors, tensors[f"{kind} of"].numpy()).only(ours)
    on_device = {name: value.to(device) for name, value in kept.stacks.items()}
    return Offers(on_device, np.searchsorted(peers, kept.rows), kept.written)


def kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape of a row, and type, of all tensors of a snapshot but the offers."""
    return {
        name: (value.shape[1:], value.dtype)
        for name, value in tensors.items()
        if not name.startswith(("offer", "coming"))
    }
