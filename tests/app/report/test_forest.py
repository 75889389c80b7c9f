"""Forest plot: places on the axis by hand, ticks, and a row of characters."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.app.report.forest import Forest, Line

UNKNOWN = (np.nan,) * 3


def plot(*estimates: tuple[float, float, float]) -> Forest:
    lines = [Line(f"hospital {k}", "20", ends, "") for k, ends in enumerate(estimates)]
    return Forest("Gain", "{:g}".format, lines)


def test_the_axis_has_zero_and_all_intervals() -> None:
    made = plot((2.0, 1.0, 3.0), UNKNOWN)
    assert made.ends == pytest.approx((-0.12, 3.12)), "4 % more on both sides"
    assert [made.at(x) for x in (-0.12, 1.5, 3.12)] == pytest.approx([0, 50, 100])
    ticks = {text: place for place, text in made.ticks}
    assert [*ticks] == ["0", "0.5", "1", "1.5", "2", "2.5", "3"]
    assert ticks["1.5"] == pytest.approx(50)


def test_one_wide_interval_does_not_hide_the_others() -> None:
    """The median end is 2 away from 0: the axis reaches 8, and the interval of 50 is cut there."""
    made = plot((1.0, -2.0, 2.0), (1.0, -2.0, 2.0), (0.0, -50.0, 50.0))
    low, high = made.ends
    assert (low, high) == pytest.approx((-8.64, 8.64))
    assert (made.at(-50), made.at(50)) == (0, 100)


def test_a_row_of_characters_has_the_same_order() -> None:
    made = plot((-1.0, -2.0, 0.5), UNKNOWN)
    bar = made.bar(made.lines[0])
    assert bar.index("─") < bar.index("■") < bar.index("│")
    assert made.bar(made.lines[1]).strip() == "│"
    mean = made.lines[0]._replace(is_mean=True)
    assert "◆" in made.bar(mean)


@pytest.mark.parametrize("estimate", [UNKNOWN, (0.0, 0.0, 0.0), (0.5, np.nan, np.nan)])
def test_odd_estimates_have_an_axis(estimate: tuple[float, float, float]) -> None:
    made = plot(estimate)
    low, high = made.ends
    assert low < 0 < high
    assert len([*made.ticks]) >= 2
