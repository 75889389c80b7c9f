"""The [defence] table: what takes the place of means where others may lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RuleName = Literal[
    "none", "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"
]


@dataclass(frozen=True)
class Defence:
    """The [defence] table: robust rules in the place of weighted means, and bounds on letters.

    A rule is used wherever a method averages models or answers, with the method's own weights, on
    those to whom it gives any (`coterie.clients.engine.robust`).

    Attributes
    ----------
    rule : "none" is the weighted mean. "median" and "trimmed-mean": of each coordinate by itself.
        "geometric-median": the point of least summed distance. "krum": the letter nearest to its
        nearest ones; "multi-krum": the mean of all but the share `tolerate` that are worst in this.
        "clip": the mean around the own model, or around the median of answers, to which none is
        farther away than all but the share `tolerate` are.
    tolerate : share of the letters that may be lies, below one half.
    nnm : replace each letter by the mean of its nearest ones first, all but the share `tolerate`
        (nearest-neighbour mixing).
    norm : refuse a model that has a number a thousand times as large as the largest both of the own
        model and of most models heard in the round.
    max_samples : most examples that a peer is believed to have, 0 for any number.
    """

    rule: RuleName = "none"
    tolerate: float = 0.2
    nnm: bool = False
    norm: bool = True
    max_samples: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerate < 0.5:
            raise ValueError("tolerate must be at least 0 and below 0.5")
        if self.nnm and self.rule == "none":
            raise ValueError('nnm goes in front of a rule, not of "none"')
        if self.max_samples < 0:
            raise ValueError("max-samples must be 0 (any number) or more")
