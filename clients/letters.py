"""Letters as a rule sees them: a stack of tensors, and the edges along which they came.

Legend: e = letters (edges), s = rows of the stack, p = peers of this node, n = all peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Part = slice | Ints
"""Some models of a stack."""


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
    """

    senders: Ints
    recipients: Ints
    rows: Ints
    authors: Ints
    tensors: Mapping[str, Tensor]

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
        return Letters(
            self.senders[mask], self.recipients[mask], self.rows[mask], self.authors, self.tensors
        )

    def senders_to(self, peers: Ints, n: int) -> Bools:
        """(P, n) who among all peers each of `peers` has a letter from."""
        mask = np.zeros((n, n), dtype=np.bool_)
        mask[self.recipients, self.senders] = True
        return mask[peers]
