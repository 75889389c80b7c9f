"""Letters as a rule sees them: a stack of tensors, and the edges along which they came.

Legend: e = letters (edges), s = rows of the stack, p = peers of this node, n = all peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Part = slice | Ints
"""Some models of a stack."""


def nobody() -> Ints:
    """No peers, (0,)."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Rows:
    """Rows of a stack, copied a part at a time: the models of all letters would not always fit.

    Attributes
    ----------
    stack : (S, d). rows : (E,) of the stack.
    """

    stack: Tensor
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Part) -> Tensor:
        return self.stack[self.rows[at]]


@dataclass(frozen=True)
class Letters:
    """What arrived on some edges. A model that goes to many peers lies in the stack once.

    Attributes
    ----------
    senders, recipients : (E,) peer ids; letters are sorted by (recipient, sender).
    rows : (E,) row of the stack that the letter carries.
    authors : (S,) peer that wrote each row, ascending among offers. A node's own offers are always
        in the stack, whether or not an edge carries them.
    tensors : name -> (S, ...).
    ages : (S,) rounds since each row was written; empty where every row is of this round.
    expired : hosted peers that slept when the others wrote: their own rows are what they woke with,
        and count for nobody, unless nothing else came.
    """

    senders: Ints
    recipients: Ints
    rows: Ints
    authors: Ints
    tensors: Mapping[str, Tensor]
    ages: Ints = field(default_factory=nobody)
    expired: Ints = field(default_factory=nobody)

    def __len__(self) -> int:
        return len(self.senders)

    def __getitem__(self, name: str) -> Tensor:
        """The stack called `name`, (S, ...)."""
        return self.tensors[name]

    def each(self, name: str) -> Tensor:
        """The tensor of every letter, (E, ...)."""
        return self.tensors[name][self.rows]

    def rows_of(self, name: str) -> Rows:
        """`each`, to be copied a part at a time."""
        return Rows(self.tensors[name], self.rows)

    def select(self, mask: Bools) -> Letters:
        """Some of the letters; the stack stays whole."""
        senders, recipients, rows = self.senders[mask], self.recipients[mask], self.rows[mask]
        return replace(self, senders=senders, recipients=recipients, rows=rows)

    def senders_to(self, peers: Ints, n: int) -> Bools:
        """(P, n) who among all peers each of `peers`, ascending, has a letter from."""
        mask = np.zeros((len(peers), n), dtype=np.bool_)
        here = np.isin(self.recipients, peers)
        mask[np.searchsorted(peers, self.recipients[here]), self.senders[here]] = True
        return mask
