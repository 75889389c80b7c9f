"""Advice to an institution: the first rule of `ADVICE` that holds for a comparison's numbers.

A number "gains" or "loses" if its whole interval lies above or below 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.clients.diagnostics import Estimate

UNKNOWN: Estimate = (np.nan, np.nan, np.nan)
RELEVANT = 0.04
"""Gain that the test should not miss: 4 points of accuracy, or 4 % of the own model's error."""


@dataclass(frozen=True)
class Evidence:
    """Numbers of one institution that decide; an `Estimate` is NaN where undefined."""

    has_threshold: bool  # there are two classes, so that a threshold of the probability decides
    gain: Estimate = UNKNOWN
    """Gain of the chosen method over the own model in the measure that leads the page."""
    ranking: Estimate = UNKNOWN  # gain in AUROC, or in the C-index of survival
    relevant: float = RELEVANT  # in the unit of `gain`


@dataclass(frozen=True)
class Advice:
    """An answer: its text with {method} and {limit}, its rule as a footnote, and the rule."""

    text: str
    rule: str
    holds: Callable[[Evidence], bool]


def gains(estimate: Estimate) -> bool:
    """Return whether the whole interval lies above 0."""
    return estimate[1] > 0


def loses(estimate: Estimate) -> bool:
    """Return whether the whole interval lies below 0."""
    return estimate[2] < 0


USE = "use"
USE_AFTER_THRESHOLD = "use after setting a threshold"
DO_NOT_USE = "do not use"
NO_GAIN = "no relevant gain"
NOT_KNOWN = "not known"

ADVICE: dict[str, Advice] = {
    USE: Advice(
        "use {method}",
        "The interval of the gain lies above 0, and that of the gain in AUROC or C-index not below "
        "0; where no threshold decides, with more than two classes or none, either interval may be "
        "the one above 0.",
        lambda e: (
            (gains(e.gain) and not loses(e.ranking))
            or (gains(e.ranking) and not loses(e.gain) and not e.has_threshold)
        ),
    ),
    USE_AFTER_THRESHOLD: Advice(
        "use {method} after setting your own threshold",
        "The interval of the AUROC gain lies above 0, that of the gain in accuracy does not: the "
        "ranking gains, the decision at probability 0.5 does not.",
        lambda e: e.has_threshold and gains(e.ranking),
    ),
    DO_NOT_USE: Advice(
        "do not use {method}",
        "The interval of the gain, or of the gain in AUROC or C-index, lies below 0: the method "
        "harms this institution.",
        lambda e: loses(e.gain) or loses(e.ranking),
    ),
    NO_GAIN: Advice(
        "no gain larger than {limit}",
        f"The interval of the gain includes 0 and ends at {100 * RELEVANT:g} points of accuracy or "
        f"less ({RELEVANT:g} of AUROC, {100 * RELEVANT:g} % of an error).",
        lambda e: e.gain[2] <= e.relevant,
    ),
    NOT_KNOWN: Advice(
        "not known",
        "Too few rows were tested, or the intervals include 0 and gains that matter.",
        lambda e: True,
    ),
}
"""Answer -> advice, in the order in which the rules are tried."""


def advise(evidence: Evidence) -> str:
    """Return the key of the first advice whose rule holds."""
    return next(key for key, advice in ADVICE.items() if advice.holds(evidence))
