"""Letters that are none: models far too large, and answers that a peer had no privacy left for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.app.wire.payload import LetterFormat
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Bools, Letters

_TIMES = 1000.0  # as large; honest models of one run are within ten
_MOST = 3  # models of which one that lies is not the one in the middle


def oversized(letters: Letters) -> Bools:
    """(E,) which models have a number far larger than any that the recipient knows.

    It knows its own model, and what most of three or more models of the round are like.
    """
    size_s = np.zeros(len(letters.authors))
    for value in letters.tensors.values():
        if value.is_floating_point() and value.numel():
            rows = value.reshape(len(value), -1)
            # Eight times as fast as the norm with that name.
            largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
            size_s = np.maximum(size_s, largest.double().cpu().numpy())
    size_e = size_s[letters.rows]
    found = np.zeros(len(letters), dtype=np.bool_)
    for peer in np.unique(letters.recipients):
        mine = letters.recipients == peer
        heard = np.sort(size_e[mine])
        known = size_s[letters.authors == peer].max(initial=0.0)
        if len(heard) >= _MOST:
            known = max(known, heard[(len(heard) - 1) // 2])
        found[mine] = (known > 0) & (size_e[mine] > _TIMES * known)
    return found


def given(
    engine: Engine, asked: Letters, tensors: Mapping[str, Tensor], form: LetterFormat
) -> Letters:
    """Answers as letters, but for those of peers that had no privacy left for all of them."""
    if engine.guard is not None and engine.guard.exhausted.any():
        paid = ~engine.guard.exhausted[np.searchsorted(engine.peers, asked.recipients)]
        at = torch.from_numpy(paid)
        asked, tensors = asked.select(paid), {name: value[at] for name, value in tensors.items()}
    answerers, rows = asked.recipients, np.arange(len(asked))
    return Letters(answerers, asked.senders, rows, answerers, form.rounded(tensors))
