"""Test the limits on a last report about an institution's test examples."""

from __future__ import annotations

import pytest

from coterie.app.institution.security.disclosure import protected
from coterie.app.institution.security.policy import Disclosure, ReportPolicy
from coterie.strategies.protocol import MEASURES, Report

MEASURED = dict.fromkeys(MEASURES, 0.7391)
SIZES = {"train": 400, "validation": 0, "test": 100}


def reported(rarest: int, disclosure: Disclosure = "all") -> dict[str, float | None]:
    report = Report(9, 0, MEASURED, (1.0,))
    return dict(protected(report, ReportPolicy(disclosure), SIZES, rarest).metrics)


def test_measures_have_the_digits_that_their_examples_support() -> None:
    report = reported(rarest=4)
    assert report["expected_calibration_error"] == report["r2"] == 0.75  # 100 examples: 0.05
    for name in ("sensitivity", "specificity", "balanced_accuracy", "macro_f1", "auroc"):
        assert report[name] == pytest.approx(0.8)  # 4 of the rarest class: 0.2
    assert report["mae"] == report["rmse"] == 0.74  # 0.05 of its power of ten


def test_a_class_that_is_not_there_tells_nothing() -> None:
    assert reported(rarest=0)["sensitivity"] is None


@pytest.mark.parametrize("disclosure", ["loss", "none"])
def test_measures_stay_where_losses_alone_or_nothing_is_told(disclosure: Disclosure) -> None:
    assert not any(reported(9, disclosure).values())
