"""Epsilon-greedy sampling of peers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coterie.clients.hints import Ints


def epsilon_greedy(explores: Iterable[bool], shuffled: Ints, best: Ints) -> Ints:
    """Sample one peer per slot, without repetition.

    A slot that explores takes the next peer of `shuffled`, another one of `best`: the same peers in
    random order and by descending merit, at least one per slot.
    """
    taken: dict[int, None] = {}
    for explore in explores:
        order = shuffled if explore else best
        taken[next(int(k) for k in order if int(k) not in taken)] = None
    return np.array(list(taken), dtype=np.int64)
