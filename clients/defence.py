"""The [defence] table: robust rules instead of means, and bounds on what is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

RuleName = Literal[
    "none", "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"
]

_TIMES_MEDIAN = 10.0


@dataclass(frozen=True)
class Defence:
    """The [defence] table: robust rules in the place of weighted means, and bounds on letters.

    A rule is used wherever a method averages models or answers, with the method's own weights, on
    those to whom it gives any (`clients.engine.robust`).

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
    norm : refuse models and answers whose norm is far above the median of those heard in the round
        (`app.node.letter_checks`).
    max_samples : maximum number of examples that a peer is believed to have; "auto": ten times the
        median of what the peers say; 0: any number.
    """

    rule: RuleName = "none"
    tolerate: float = 0.2
    nnm: bool = False
    norm: bool = True
    max_samples: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.tolerate < 0.5:
            raise ValueError("tolerate must be at least 0 and below 0.5")
        if self.nnm and self.rule == "none":
            raise ValueError('nnm goes in front of a rule, not of "none"')
        if self.max_samples != "auto" and self.max_samples < 0:
            raise ValueError('max-samples must be "auto", 0 (any number) or more')

    def believed(self, samples: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(n,) numbers of examples, as far as they are believed; 0 of a peer that is not there."""
        if self.max_samples != "auto":
            return np.minimum(samples, self.max_samples) if self.max_samples else samples
        there = np.sort(samples[samples > 0])
        if not len(there):
            return samples
        return np.minimum(samples, _TIMES_MEDIAN * there[(len(there) - 1) // 2])
