"""Advice to an institution: each rule by its text."""

from __future__ import annotations

import pytest

from coterie.app.report.advice import ADVICE, UNKNOWN, Evidence, advise
from coterie.clients.diagnostics import Estimate

UP, DOWN, OPEN = (0.02, 0.01, 0.03), (-0.02, -0.03, -0.01), (0.01, -0.01, 0.05)
SMALL = (0.01, -0.01, 0.03)


@pytest.mark.parametrize(
    ("gain", "ranking", "advice"),
    [
        (UP, UP, "use"),
        (UP, OPEN, "use"),
        (UP, UNKNOWN, "use"),
        (UP, DOWN, "do not use"),
        (OPEN, UP, "use after setting a threshold"),
        (DOWN, UP, "use after setting a threshold"),
        (DOWN, OPEN, "do not use"),
        (OPEN, DOWN, "do not use"),
        (DOWN, UNKNOWN, "do not use"),
        (SMALL, OPEN, "no relevant gain"),
        (OPEN, SMALL, "not known"),
        (UNKNOWN, UNKNOWN, "not known"),
    ],
)
def test_intervals_decide(gain: Estimate, ranking: Estimate, advice: str) -> None:
    assert advise(Evidence(True, gain, ranking)) == advice


@pytest.mark.parametrize(
    ("gain", "ranking", "advice"),
    [
        (OPEN, UP, "use"),
        (UNKNOWN, UP, "use"),
        (DOWN, UP, "do not use"),
        (UP, DOWN, "do not use"),
        (OPEN, OPEN, "not known"),
    ],
)
def test_without_two_classes_there_is_no_threshold_to_set(
    gain: Estimate, ranking: Estimate, advice: str
) -> None:
    assert advise(Evidence(False, gain, ranking)) == advice


def test_no_interval_judges_nothing() -> None:
    assert advise(Evidence(True)) == advise(Evidence(False)) == "not known"


def test_a_gain_of_a_loss_is_measured_in_its_own_unit() -> None:
    assert advise(Evidence(False, (1.0, -1.0, 3.0), relevant=4.0)) == "no relevant gain"
    assert advise(Evidence(False, (1.0, -1.0, 3.0), relevant=2.0)) == "not known"


def test_every_advice_is_a_short_sentence_with_a_rule() -> None:
    assert [advice.text for advice in ADVICE.values()] == [
        "use {method}", "use {method} after setting your own threshold", "do not use {method}",
        "no gain larger than {limit}", "not known",
    ]  # fmt: skip
    assert all(advice.rule.endswith(".") for advice in ADVICE.values())
