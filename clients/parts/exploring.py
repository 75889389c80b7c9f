"""Exploration against exploitation: whose models a peer takes when it may take a few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coterie.clients.letters import Ints


def epsilon_greedy(explores: Iterable[bool], chance: Ints, best: Ints) -> Ints:
    """One peer for each slot, none twice.

    Parameters
    ----------
    explores : for each slot, whether it goes to the next peer of `chance`, else of `best`.
    chance, best : the same peers, in random order and by merit; no fewer than there are places.
    """
    taken: dict[int, None] = {}
    for explore in explores:
        order = chance if explore else best
        taken[next(int(k) for k in order if int(k) not in taken)] = None
    return np.array(list(taken), dtype=np.int64)
