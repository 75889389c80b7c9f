"""The table of synchronous rounds against asynchrony."""

from __future__ import annotations

import numpy as np

from studies.asynchrony import Curve, row


def test_deviations_over_seeds_are_those_of_a_sample() -> None:
    """Three seeds end at 0.7, 0.8 and 0.9: 10 points, not the 8.2 of a population."""
    curves = [Curve(np.array([0.0, 4.0]), np.array([end, end])) for end in (0.7, 0.8, 0.9)]
    assert row({"rounds": curves}, "rounds") == [*["80.0 ± 10.0"] * 3, "0 %", "4 s"]
    assert row({"rounds": curves[:1]}, "rounds")[0] == "70.0 ± 0.0", "one seed has none"
