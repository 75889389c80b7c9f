"""Stacked newest offers of the peers of a node.

Legend: s = offers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import finite
from coterie.app.wire.payload import LetterFormat
from coterie.clients.letters import Bools, Ints, nobody

UNWRITTEN = -1
"""Stands for the round of a model that its peer has not sent to any other peer."""


@dataclass(frozen=True, eq=False)
class Offers:
    """Offers of hosted peers.

    Attributes
    ----------
    stacks : Mapping of str to Tensor
        Name -> (S, ...) tensors.
    rows : ndarray of int, (S,)
        Local index of each offer's peer, ascending.
    written : ndarray of int, (S,)
        Round of each offer, or `UNWRITTEN`.
    """

    stacks: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Ints = field(default_factory=nobody)
    written: Ints = field(default_factory=nobody)

    @classmethod
    def made(
        cls, stacks: Mapping[str, Tensor], rows: Ints, written: Ints, form: LetterFormat
    ) -> Offers:
        """Return offers rounded to the precision of the payload."""
        return cls(form.rounded(stacks), rows, written)

    def only(self, kept: Bools) -> Offers:
        """Return the offers marked in `kept`, (S,)."""
        if kept.all():
            return self
        if not kept.any():
            return Offers()
        at = torch.from_numpy(np.flatnonzero(kept))
        stacks = {name: value[at.to(value.device)] for name, value in self.stacks.items()}
        return Offers(stacks, self.rows[kept], self.written[kept])

    def since(self, t: int) -> Offers:
        """Return the offers of round `t` and later."""
        return self.only(self.written >= t)

    def beside(self, others: Offers) -> Offers:
        """Return these offers and those of other peers; no copy if either is empty."""
        return Offers.together([self, others])

    @classmethod
    def together(cls, several: Sequence[Offers]) -> Offers:
        """Concatenate the offers of different peers; no copy if only one has offers."""
        there = [offers for offers in several if len(offers.rows)]
        if len(there) < 2:
            return there[0] if there else cls()
        rows = np.concatenate([offers.rows for offers in there])
        order = np.argsort(rows, kind="stable")
        places, stacks = np.argsort(order), dict[str, Tensor]()
        for offers in there:  # copied once into place: with many peers a second copy is expensive
            at, places = np.split(places, [len(offers.rows)])
            for name, value in offers.stacks.items():
                whole = stacks.setdefault(name, value.new_empty((len(rows), *value.shape[1:])))
                whole[torch.from_numpy(at).to(value.device)] = value
        return cls(stacks, rows[order], np.concatenate([o.written for o in there])[order])

    @cached_property
    def sound(self) -> tuple[Mapping[str, Tensor], Bools]:
        """Result of `sound_rows` for the stacks, computed once."""
        stacks, sound = sound_rows(self.stacks)
        return stacks, np.broadcast_to(sound, self.rows.shape)


def sound_rows(stacks: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Bools]:
    """Return the stacks with zeros in non-finite rows, and a mask (S,) of the finite rows.

    A non-finite row is never sent, but shares a stack with other rows. Empty stacks give True.
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
