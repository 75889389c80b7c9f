"""Paired test over seeds and peers: the methods that may be called best.

Two methods are compared on the differences d_sp of peer p with seed s: same data, split and start.
The peers of a run learn from each other and share data and clusters, so they are not independent
repetitions; the seeds are. The test is a paired t-test of the S means over peers,

    t = mean_s(d_s) / sqrt(max(var_s(d_s), mean_s(var_p(d_sp) / n)) / S),  S - 1 degrees of freedom,

whose variance is not taken to be smaller than the spread over peers alone would make it: the means
of few seeds lie close together by chance too often. Thus a difference counts if it holds for other
seeds and for other peers. Below `MIN_SEEDS` seeds there is no test: with two, t has one degree of
freedom, hence no mean and next to no power. (Flipping signs would need no normal means, but can
reject nothing before the sixth seed, which comparisons rarely have.)

Where every seed divides the same rows of institutions again, the seeds are not independent either:
1/S becomes 1/S + test rows per training row (Nadeau and Bengio, "Inference for the Generalization
Error", 2003).

The method with the best mean is compared with each other method. The tests are two-sided because
the data selected this method. Holm's correction bounds the chance of any false "worse" by `LEVEL`.

Shapes: S seeds, n peers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.app.runs.rundir import Floats, Run

LEVEL = 0.05
MIN_SEEDS = 3
"""Number of seeds below which no difference is tested."""
TABLE_SEEDS = 10
"""Default number of seeds of tables: a run takes seconds, and few rows need many seeds."""
POWER = 0.8
"""Probability with which `seeds_needed` wants a difference to be found."""
MAX_SEEDS = 100
"""Number of seeds up to which `seeds_needed` looks."""
Values = Mapping[Any, Floats]
"""Seed -> (n,) value of each peer; NaN if it has none."""


def split_ratio(run: Run, peers: Sequence[int] | None = None) -> float:
    """Return the test rows (or groups) per training row if every seed divides the same; else 0."""
    # Test rows that an institution divided itself do not count: every seed keeps them.
    test_n, train_n = (run.sizes(part, in_groups=True) for part in ("test", "train"))
    is_divided = run.settings.split_seed == "seed"
    if "test" not in run.settings.dataset_options or not is_divided:
        return 0.0
    if run.split is None or test_n is None or train_n is None:
        return 0.0
    drawn_n = np.array([0.0 if each.test.fixed else 1.0 for each in run.split])
    among = range(run.peers) if peers is None else peers
    test_p, train_p = (test_n * drawn_n)[among], train_n[among]
    return float(test_p.sum() / max(1.0, train_p.sum()))


def p_value(differences: Sequence[Floats], ratio: float = 0.0) -> float:
    """Return the two-sided p-value of differences, (n,) per seed; `ratio`: see `split_ratio`."""
    # 1 if no test is possible; 0 if all peers differ by the same amount with every seed.
    seeds, mean, deviation = _mean_deviation(differences)
    if np.isnan(deviation):
        return 1.0
    from scipy.special import stdtr  # only comparisons test; scipy.stats takes half a second

    effect = abs(mean) / deviation if deviation else np.inf
    return float(2 * stdtr(seeds - 1, -effect / np.sqrt(1 / seeds + ratio)))


def interval(
    differences: Sequence[Floats], ratio: float = 0.0, tests: int = 1
) -> tuple[float, float, float]:
    """Return the mean difference and its 95 % interval: what the test does not reject, or NaN."""
    # Selected among `tests` methods, the level is that of Holm's first step, 1 - `LEVEL` / `tests`.
    seeds, mean, deviation = _mean_deviation(differences)
    if np.isnan(deviation):
        return mean, np.nan, np.nan
    from scipy.special import stdtrit

    critical = float(stdtrit(seeds - 1, 1 - LEVEL / tests / 2))
    reach = critical * deviation * float(np.sqrt(1 / seeds + ratio))
    return mean, mean - reach, mean + reach


def seeds_needed(differences: Sequence[Floats], ratio: float = 0.0, tests: int = 1) -> int | None:
    """Return the number of seeds for a power of `POWER` if mean and deviation stay as measured."""
    # t then has a noncentral t-distribution with S - 1 degrees of freedom and noncentrality mean /
    # deviation / sqrt(1/S + ratio). None above `MAX_SEEDS`, or if no test is possible.
    from scipy.special import nctdtr, stdtrit

    _, mean, deviation = _mean_deviation(differences)
    if deviation == 0:
        return MIN_SEEDS
    effect = mean / deviation
    seeds_s = np.arange(MIN_SEEDS, MAX_SEEDS + 1)
    critical_s = stdtrit(seeds_s - 1, 1 - LEVEL / tests / 2)
    power_s = 1 - nctdtr(seeds_s - 1, abs(effect) / np.sqrt(1 / seeds_s + ratio), critical_s)
    enough = seeds_s[power_s >= POWER]
    return int(enough[0]) if len(enough) else None


def _mean_deviation(differences: Sequence[Floats]) -> tuple[int, float, float]:
    """Return the number of seeds, mean and deviation (0: all differ equally; NaN: no test)."""
    kept = [d_p[~np.isnan(d_p)] for d_p in differences]
    kept = [d_p for d_p in kept if len(d_p)]
    mean_s = np.array([d_p.mean() for d_p in kept])
    mean = float(mean_s.mean()) if kept else np.nan
    if len(kept) < MIN_SEEDS:
        return len(kept), mean, np.nan
    of_peers = [d_p.var(ddof=1) / len(d_p) if len(d_p) > 1 else 0.0 for d_p in kept]
    variance = max(float(mean_s.var(ddof=1)), float(np.mean(of_peers)))
    is_shown = variance > 0 or (mean_s.any() and min(map(len, kept)) > 1)
    return len(kept), mean, float(np.sqrt(variance)) if is_shown else np.nan


def holm(p_m: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction for several tests."""
    corrected, largest = [0.0] * len(p_m), 0.0
    for rank, k in enumerate(np.argsort(p_m, kind="stable")):
        largest = max(largest, (len(p_m) - rank) * p_m[k])
        corrected[k] = min(1.0, largest)
    return corrected


def leaders(values: Mapping[str, Values], ratio: float = 0.0) -> list[str]:
    """Return the method with the largest mean, and those not significantly worse."""
    mean = {
        method: float(np.mean([np.nanmean(v_p) for v_p in of.values()]))
        for method, of in values.items()
    }
    top, *others = sorted(values, key=lambda method: -mean[method])
    differences = [
        [values[top][seed] - values[method][seed] for seed in values[top] if seed in values[method]]
        for method in others
    ]
    p_m = holm([p_value(of, ratio) for of in differences])
    return [top, *(method for method, p in zip(others, p_m, strict=True) if p > LEVEL)]
