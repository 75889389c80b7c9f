"""Letters that are no model: not finite, or far larger than all that their recipient knows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from app.node.arrays import finite
from clients.letters import Bools, Ints, Letters

_TIMES = 1000.0  # as large; honest models of one run are within ten
_MOST = 3  # models of which one that lies is not the one in the middle


def oversized(letters: Letters, peers: Ints) -> Bools:
    """(E,) which models have a number far larger than any that the recipient knows.

    It knows its own model, and what most of three or more models of the round are like.
    """
    size_s = np.zeros(len(letters.authors))
    for value in letters.tensors.values():
        if value.is_floating_point() and value.numel():
            largest = torch.linalg.vector_norm(value.reshape(len(value), -1), torch.inf, dim=1)
            size_s = np.maximum(size_s, largest.double().cpu().numpy())
    size_e = size_s[letters.rows]
    own_p = size_s[np.searchsorted(letters.authors, peers)]
    bound_p = np.full(len(peers), np.inf)
    for p, peer in enumerate(peers):
        heard = np.sort(size_e[letters.recipients == peer])
        most = heard[(len(heard) - 1) // 2] if len(heard) >= _MOST else 0.0
        if max(own_p[p], most) > 0:
            bound_p[p] = _TIMES * max(own_p[p], most)
    found: Bools = size_e > bound_p[np.searchsorted(peers, letters.recipients)]
    return found


def only_sound(stacks: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Bools]:
    """The stacks with zeros in rows that are not finite; (S,) which rows are, True of no stacks.

    Such a row is nobody's letter, but stands in one stack with those of others.
    """
    sound: Bools = np.array(True)
    for value in stacks.values():
        if value.is_floating_point() and value.numel():
            sound = sound & finite(value).numpy()
    if not sound.all():
        stacks = {name: value.clone() for name, value in stacks.items()}
        for value in stacks.values():
            value[torch.from_numpy(~sound).to(value.device)] = 0
    return stacks, sound
