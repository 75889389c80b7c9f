"""Robust aggregation and checks of received letters: the [defence] table, and the table of rules.

Rules are weighted means whose weights follow from the distances between letters, or work on each
coordinate; `coterie.clients.engine.robust` applies them and names their sources. Does not import
torch. Legend: k = letters of one recipient, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets import plugins
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]

_TIMES_MEDIAN = 10.0
_ITERATIONS = 2000
_STILL = 1e-12
"""Change of the weights at which the iteration of the geometric median stops."""


@dataclass(frozen=True)
class AggregationRule:
    """Robust aggregation rule: a row of `RULES`.

    K letters have weights that sum to 1, and f of them may be malicious. A rule has one of
    `weights` and `coordinates`; "none" and "clip" have neither.

    Attributes
    ----------
    summary : str
        Description in one line.
    weights : callable or None
        Function from the squared distances (K, K) between the letters, their weights (K,) and f to
        the weights (K,) of a mean.
    coordinates : callable or None
        Function from the sorted values (K, d) of each coordinate, their weights (K, d) and the
        share f / K to the aggregate (d,).
    """

    summary: str
    weights: Callable[[Floats, Floats, int], Floats] | None = None
    coordinates: Callable[[Tensor, Tensor, float], Tensor] | None = None


def _scores(squares_kk: Floats, f: int) -> Floats:
    """Return the summed distances (K,) of each letter to its k - f nearest, itself included."""
    scores: Floats = np.sort(squares_kk, axis=1)[:, : len(squares_kk) - f].sum(axis=1)
    return scores


def _krum(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    a_k: Floats = np.eye(len(w_k))[_scores(squares_kk, f).argmin()]
    return a_k


def _multi_krum(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    a_k = np.zeros_like(w_k)
    best = np.argsort(_scores(squares_kk, f), kind="stable")[: len(w_k) - f]
    a_k[best] = w_k[best] / w_k[best].sum()
    return a_k


def _geometric_median(squares_kk: Floats, w_k: Floats, f: int) -> Floats:
    """Run Weiszfeld's iteration on the weights a of v = sum_k a_k x_k.

    |x_j - v|^2 = sum_k a_k D_jk - 1/2 sum_kl a_k a_l D_kl for squared distances D. It begins at the
    letter with the smallest summed distance; if that letter is the median, it stays there (Vardi
    and Zhang, PNAS 2000).
    """
    distance_kk = np.sqrt(squares_kk)
    first = int((distance_kk @ w_k).argmin())
    alone_k: Floats = np.eye(len(w_k))[first]
    others = squares_kk[first] > 0
    u_k = np.where(others, w_k / np.where(others, distance_kk[first], 1.0), 0.0)
    if u_k.sum() == 0:
        return alone_k
    a_k: Floats = u_k / u_k.sum()
    pull = u_k.sum() * np.sqrt(max(_away(squares_kk, a_k)[first], 0.0))
    if pull <= w_k[~others].sum():
        return alone_k
    for _ in range(_ITERATIONS):
        far_k = np.sqrt(np.maximum(_away(squares_kk, a_k), 1e-24 * squares_kk.max()))
        next_k = w_k / far_k / (w_k / far_k).sum()
        moved, a_k = np.abs(next_k - a_k).max(), next_k
        if moved < _STILL:
            break
    return a_k


def _away(squares_kk: Floats, a_k: Floats) -> Floats:
    """Return the squared distances (K,) of the letters from their mean with weights a."""
    along_k = squares_kk @ a_k
    away_k: Floats = along_k - a_k @ along_k / 2
    return away_k


def median(values_kd: Tensor, w_kd: Tensor, share: float) -> Tensor:
    """Return the weighted median of each coordinate: the midpoint if half is reached exactly."""
    reached_kd = w_kd.cumsum(dim=0)
    last = len(values_kd) - 1
    low_d = (reached_kd < 0.5 - 1e-9).sum(dim=0).clamp(max=last)
    high_d = (reached_kd < 0.5 + 1e-9).sum(dim=0).clamp(max=last)
    low, high = values_kd.gather(0, low_d[None])[0], values_kd.gather(0, high_d[None])[0]
    return low + (high - low) / 2


def _trimmed_mean(values_kd: Tensor, w_kd: Tensor, share: float) -> Tensor:
    """Return the mean of each coordinate without `share` of the weight at either end."""
    reached_kd = w_kd.cumsum(dim=0)
    kept_kd = (reached_kd.clamp(max=1 - share) - (reached_kd - w_kd).clamp(min=share)).clamp(min=0)
    return (values_kd * kept_kd).sum(dim=0) / kept_kd.sum(dim=0)


RULES: Mapping[str, AggregationRule] = {
    "none": AggregationRule("weighted mean"),
    "clip": AggregationRule(
        "mean of the differences to the peer's own model (for answers: to their median), clipped "
        "at the (1 - tolerate) quantile of their norms"
    ),
    "median": AggregationRule("median of each coordinate", coordinates=median),
    "trimmed-mean": AggregationRule(
        "mean of each coordinate without the share `tolerate` at either end",
        coordinates=_trimmed_mean,
    ),
    "krum": AggregationRule("the letter closest to its nearest neighbours", _krum),
    "multi-krum": AggregationRule(
        "mean without the share `tolerate` that is farthest from its neighbours", _multi_krum
    ),
    "geometric-median": AggregationRule(
        "the point with the smallest sum of distances", _geometric_median
    ),
}
"""Aggregation rules by name; `coterie.clients.engine.robust` computes them."""


@dataclass(frozen=True)
class Defence:
    """Robust aggregation instead of weighted means, and bounds on received letters.

    The rule replaces every weighted mean of models or answers, over the letters to which the
    method gives a positive weight (`coterie.clients.engine.robust`).

    Attributes
    ----------
    rule : str
        Aggregation rule, see `coterie list defences`, or the name of a plugin.
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

    rule: str = "none"
    tolerate: Annotated[float, Range(0, below=0.5)] = 0.2
    nnm: bool = False
    norm: bool = True
    max_samples: Annotated[int, Range(0)] | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.nnm and self.rule == "none":
            raise ValueError('nnm needs an aggregation rule: set rule, which is "none"')

    @property
    def row(self) -> AggregationRule:
        """Row of `RULES`, or of a plugin."""
        return rule_of(self.rule)

    def believed(self, samples: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the numbers of examples (n,), limited to `max_samples`; 0 for missing peers."""
        maximum = float("inf")
        if self.max_samples != "auto":
            maximum = self.max_samples or maximum
        elif len(there := np.sort(samples[samples > 0])):
            maximum = _TIMES_MEDIAN * there[(len(there) - 1) // 2]
        believed: npt.NDArray[np.float64] = np.minimum(samples, maximum)
        return believed


rule_of = partial(plugins.row, "defence", built_in=RULES, wanted=AggregationRule)
"""Aggregation rule by name, built in or of a plugin."""
