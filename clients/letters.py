"""Letters as a rule sees them: a stack of tensors, and the edges that carried them; their options.

Legend: e = letters (edges), s = rows of the stack, p = peers of this node, n = all peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from coterie.ranges import option

if TYPE_CHECKING:
    from torch import Tensor

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
OperatorName = Literal["top-k", "sign", "low-rank", "int4"]
Part = slice | Ints
"""Index of some models of a stack."""


def no_peers() -> Ints:
    """Return an empty array of peer ids."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Rows:
    """Lazy selection of rows: slicing copies only that part, as all may not fit in memory."""

    stack: Tensor  # models to select from, (S, d)
    rows: Ints  # selected rows of the stack, which may repeat, (E,)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Part) -> Tensor:
        return self.stack[self.rows[at]]


@dataclass(frozen=True, eq=False)
class Letters:
    """Batch of letters along edges; a model sent to many peers is in the stack once."""

    senders: Ints  # (E,)
    recipients: Ints  # (E,)
    """Peer ids of each edge, sorted by (recipient, sender)."""
    rows: Ints  # (E,), row of the stack that each letter carries
    authors: Ints  # (S,)
    """Peer that wrote each row; ascending for offers, where each hosted peer has a row."""
    tensors: Mapping[str, Tensor]  # (S, ...), the stack
    ages: Ints = field(default_factory=no_peers)  # (S,)
    """Rounds since each row was written; empty if all rows are from this round."""
    expired: Ints = field(default_factory=no_peers)
    """Hosted peers whose own row is too old to count, because they were offline. It is used only
    where no other model arrived."""
    written: Ints = field(default_factory=no_peers)  # (S,)
    """Round of each row, in the offers that a node keeps; rules read `ages` instead."""
    kind: Literal["offer", "answer"] = "offer"
    """Models, or the results that their readers computed with them."""

    def __len__(self) -> int:
        return len(self.senders)

    def __getitem__(self, name: str) -> Tensor:
        """Return the stack called `name`, (S, ...); a KeyError names those that exist."""
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(
                f"no {name!r} in these letters, they have {list(self.tensors)}"
            ) from None

    @property
    def ends(self) -> Ints:
        """Sender and recipient of each letter, (E, 2)."""
        return np.stack([self.senders, self.recipients], axis=1)

    def each(self, name: str) -> Tensor:
        """Return the tensor of every letter, (E, ...)."""
        return self[name][self.rows]

    def rows_of(self, name: str) -> Rows:
        """Return the tensor of every letter, to be copied in parts."""
        return Rows(self[name], self.rows)

    def select(self, mask: Bools) -> Letters:
        """Select letters by a mask (E,); the stack is not copied."""
        senders, recipients, rows = self.senders[mask], self.recipients[mask], self.rows[mask]
        return replace(self, senders=senders, recipients=recipients, rows=rows)

    def senders_to(self, peers: Ints, n: int) -> Bools:
        """Return a mask (P, n) of the senders to each of `peers` (ascending ids)."""
        mask = np.zeros((len(peers), n), dtype=np.bool_)
        here = np.isin(self.recipients, peers)
        mask[np.searchsorted(peers, self.recipients[here]), self.senders[here]] = True
        return mask


def no_letters(kind: Literal["offer", "answer"] = "offer") -> Letters:
    """Return an empty stack of letters."""
    return Letters(no_peers(), no_peers(), no_peers(), no_peers(), {}, kind=kind)


@dataclass(frozen=True)
class Lazy:
    """A function of copies of the rows of several stacks, computed part by part."""

    function: Callable[..., Tensor]
    stacks: tuple[Rows, ...]

    def __len__(self) -> int:
        return len(self.stacks[0])

    def __getitem__(self, at: Part) -> Tensor:
        return self.function(*(stack[at] for stack in self.stacks))


@dataclass(frozen=True)
class LetterOptions:
    """The [letters] table: increments against public copies, which save bytes (docs/letters.md)."""

    scheme: Literal["full", "increments"] = option(
        "full",
        '"full": an offer carries the whole model. "increments": it carries the compressed '
        "difference to the peer's public copy, which all peers read, its owner included.",
    )
    operator: OperatorName = option(
        "int4",
        "Compression of the difference: 4 bits per number; signs and a scale per tensor; its "
        "largest entries; or a low-rank factorisation per matrix.",
    )
    ratio: float = option(
        0.05,
        'Fraction of the numbers that an increment carries, for "top-k" and "low-rank".',
        above=0,
        high=1,
    )
    damping: float = option(
        1.0,
        "Step size gamma of CHOCO-SGD in methods that average: fraction of the way from a peer's "
        'public copy to the average. "top-k" and "low-rank" need 0.5 or less.',
        above=0,
        high=1,
    )

    def __post_init__(self) -> None:
        for key in ("operator", "ratio", "damping"):
            if self.scheme == "full" and getattr(self, key) != getattr(LetterOptions, key):
                raise ValueError(f'letters.{key} needs letters.scheme = "increments"')
