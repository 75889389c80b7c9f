"""Advice to an institution: each rule by its text."""

from __future__ import annotations

import pytest

from coterie.app.report.advice import ADVICE, UNKNOWN, Evidence, advise
from coterie.clients.diagnostics import Estimate

UP, DOWN, OPEN = (0.02, 0.01, 0.03), (-0.02, -0.03, -0.01), (0.01, -0.01, 0.03)
GOOD, GUESS = (0.8, 0.7, 0.9), (0.6, 0.49, 0.7)


@pytest.mark.parametrize(
    ("gain", "ranking", "own", "advice"),
    [
        (UP, UP, GOOD, "use"),
        (UP, OPEN, GOOD, "use"),
        (UP, UNKNOWN, UNKNOWN, "use"),
        (UP, DOWN, GOOD, "do not use"),
        (OPEN, UP, GOOD, "use after setting a threshold"),
        (DOWN, UP, GOOD, "use after setting a threshold"),
        (DOWN, OPEN, GOOD, "do not use"),
        (OPEN, DOWN, GOOD, "do not use"),
        (DOWN, UNKNOWN, UNKNOWN, "do not use"),
        (OPEN, OPEN, GOOD, "stay with your own model"),
        (UNKNOWN, UNKNOWN, UNKNOWN, "stay with your own model"),
        (OPEN, OPEN, GUESS, "collect data"),
        (UP, OPEN, GUESS, "use"),
        (DOWN, OPEN, GUESS, "do not use"),
    ],
)
def test_intervals_decide(gain: Estimate, ranking: Estimate, own: Estimate, advice: str) -> None:
    assert advise(Evidence(False, 20, True, gain, ranking, own)) == advice


@pytest.mark.parametrize(
    ("gain", "ranking", "advice"),
    [
        (OPEN, UP, "use"),
        (UNKNOWN, UP, "use"),
        (DOWN, UP, "do not use"),
        (UP, DOWN, "do not use"),
        (OPEN, OPEN, "stay with your own model"),
    ],
)
def test_without_two_classes_there_is_no_threshold_to_set(
    gain: Estimate, ranking: Estimate, advice: str
) -> None:
    assert advise(Evidence(False, 20, False, gain, ranking, GOOD)) == advice


@pytest.mark.parametrize("gain", [UP, OPEN, DOWN])
def test_fewer_than_twenty_rows_of_the_rarer_class_judge_nothing(gain: Estimate) -> None:
    assert advise(Evidence(False, 19, True, gain, gain, GUESS)) == "too few rows to judge"
    assert advise(Evidence(True, 0, True, gain, gain, GUESS)) == "collect data"


def test_every_advice_is_a_short_sentence_with_a_rule() -> None:
    assert [advice.text for advice in ADVICE.values()] == [
        "collect data", "too few rows to judge", "use {method}",
        "use {method} after setting your own threshold", "do not use {method}",
        "stay with your own model",
    ]  # fmt: skip
    assert all(advice.rule.endswith(".") for advice in ADVICE.values())
