"""Options of robust aggregation and of checks of received letters: the [defence] table."""

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
    """Robust aggregation instead of weighted means, and bounds on received letters.

    The rule replaces every weighted mean of models or answers, over the letters to which the
    method gives a positive weight (`coterie.clients.engine.robust`).

    Attributes
    ----------
    rule : {"none", "clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"}
        Aggregation rule. "none": weighted mean. "median" and "trimmed-mean": per coordinate.
        "geometric-median": the point with the smallest sum of distances. "krum": the letter
        closest to its nearest neighbours; "multi-krum": the mean without the share `tolerate` that
        is farthest from its neighbours. "clip": the mean of the differences to the peer's own model
        (for answers: to their median), clipped at the (1 - tolerate) quantile of their norms.
    tolerate : float
        Share of the letters that may be malicious, below 0.5.
    nnm : bool
        Nearest-neighbour mixing: first replace each letter by the mean of its nearest neighbours,
        all but the share `tolerate`.
    norm : bool
        Reject models and answers whose norm is far above the median of those received in the round
        (`coterie.app.node.cohort.letter_checks`).
    max_samples : int or "auto"
        Maximum number of examples that a peer may claim; "auto": ten times the median of all
        claims; 0 for no limit.
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
            raise ValueError('nnm needs an aggregation rule: set rule, which is "none"')
        if self.max_samples != "auto" and self.max_samples < 0:
            raise ValueError('max-samples must be "auto", 0 (any number) or more')

    def believed(self, samples: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the numbers of examples (n,), limited to `max_samples`; 0 for missing peers."""
        maximum = float("inf")
        if self.max_samples != "auto":
            maximum = self.max_samples or maximum
        elif len(there := np.sort(samples[samples > 0])):
            maximum = _TIMES_MEDIAN * there[(len(there) - 1) // 2]
        believed: npt.NDArray[np.float64] = np.minimum(samples, maximum)
        return believed
