"""Advice to an institution: the first rule of `ADVICE` that holds for a comparison's numbers.

A number "gains" or "loses" if its whole interval lies above or below 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.app.runs.quality import MIN_ROWS
from coterie.clients.diagnostics import Estimate

UNKNOWN: Estimate = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Evidence:
    """Numbers of one institution that decide; an `Estimate` is NaN where undefined."""

    one_class: bool  # all its rows have the same class
    rarer: int
    """Number of test rows without the most frequent class, for two classes the rarer class; of
    survival, test rows with the event; else all test rows. Rows of a group count once."""
    has_threshold: bool  # there are two classes, so that a threshold of the probability decides
    gain: Estimate = UNKNOWN
    """Gain of the chosen method over the own model: accuracy, or reduction of the loss."""
    ranking: Estimate = UNKNOWN  # gain in AUROC, or in the C-index of survival
    own_ranking: Estimate = UNKNOWN  # AUROC or C-index of the own model


@dataclass(frozen=True)
class Advice:
    """An answer: its text with {method}, its rule as a footnote, and the rule itself."""

    text: str
    rule: str
    holds: Callable[[Evidence], bool]


def gains(estimate: Estimate) -> bool:
    """Return whether the whole interval lies above 0."""
    return estimate[1] > 0


def loses(estimate: Estimate) -> bool:
    """Return whether the whole interval lies below 0."""
    return estimate[2] < 0


COLLECT = "collect data"
TOO_FEW = "too few rows to judge"
USE = "use"
USE_AFTER_THRESHOLD = "use after setting a threshold"
DO_NOT_USE = "do not use"
STAY = "stay with your own model"

ADVICE: dict[str, Advice] = {
    COLLECT: Advice(
        "collect data",
        "All rows have the same class, or the AUROC of the institution’s own model may be that of "
        "guessing (its interval reaches 0.5) and the method neither gains nor loses.",
        lambda e: e.one_class or (e.rarer >= MIN_ROWS and _guesses(e)),
    ),
    TOO_FEW: Advice(
        "too few rows to judge",
        f"Fewer than {MIN_ROWS} test rows of the rarer class (of all test rows, if there are no "
        "classes).",
        lambda e: e.rarer < MIN_ROWS,
    ),
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
    STAY: Advice(
        "stay with your own model",
        "The intervals include 0, or there is none: nothing shows that the method is better.",
        lambda e: True,
    ),
}
"""Answer -> advice, in the order in which the rules are tried."""


def _guesses(e: Evidence) -> bool:
    judged = (gains, loses)
    return e.own_ranking[1] <= 0.5 and not any(
        of(estimate) for of in judged for estimate in (e.gain, e.ranking)
    )


def advise(evidence: Evidence) -> str:
    """Return the key of the first advice whose rule holds."""
    return next(key for key, advice in ADVICE.items() if advice.holds(evidence))
