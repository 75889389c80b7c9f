"""Options of letters: the [letters] table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from coterie.ranges import Range

OperatorName = Literal["top-k", "sign", "low-rank", "int4"]


@dataclass(frozen=True)
class LetterOptions:
    """The [letters] table: increments against public copies, which save bytes.

    Implemented in `coterie.app.node.cohort.copies`; docs/letters.md says which operator to use.

    Attributes
    ----------
    scheme : {"full", "increments"}
        "full": an offer carries the whole model. "increments": it carries the compressed difference
        to the peer's public copy, which all peers read, its owner included.
    operator : {"sign", "top-k", "low-rank", "int4"}
        Compression of the difference: signs and a scale per tensor; its largest entries; a low-rank
        factorisation per matrix; or 4 bits per number.
    ratio : float
        Fraction of the numbers that an increment carries, for "top-k" and "low-rank".
    damping : float
        Step size gamma of CHOCO-SGD in methods that average: fraction of the way from a peer's
        public copy to the average. "top-k" and "low-rank" need 0.5 or less.
    """

    scheme: Literal["full", "increments"] = "full"
    operator: OperatorName = "sign"
    ratio: Annotated[float, Range(above=0, high=1)] = 0.05
    damping: Annotated[float, Range(above=0, high=1)] = 1.0

    def __post_init__(self) -> None:
        for key in ("operator", "ratio", "damping"):
            if self.scheme == "full" and getattr(self, key) != getattr(LetterOptions, key):
                raise ValueError(f'letters.{key} needs letters.scheme = "increments"')
