"""Verdicts on claims, from numbers per seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from coterie.app.lab.reproduction import claims
from coterie.app.lab.reproduction.claims import UNDEFINED, Verdict
from coterie.app.lab.reproduction.figures import Claim, Figure, Panel, Row
from coterie.app.lab.reproduction.results import Numbers, Place, SeedNumbers

A = np.array([0.91, 0.95, 0.92, 0.94])
B = np.array([0.90, 0.90, 0.91, 0.90])


def judged(claim: dict[str, Any], of_rows: dict[str, Any], **figure: Any) -> Verdict:
    """Judge one claim about rows with the values of seeds 0, 1, ...; or by panel and row."""
    rows = {name.partition("/")[2] or name for name in of_rows}
    panels = {name.partition("/")[0] if "/" in name else "" for name in of_rows}
    made = Figure(
        "table-1", "", "", rows=tuple(Row(row) for row in sorted(rows)),
        panels=tuple(Panel(panel, small="default") for panel in sorted(panels)),
        claims=(Claim("", **claim),), **figure,
    )  # fmt: skip
    places = {}
    for name, of in of_rows.items():
        panel, row = name.split("/") if "/" in name else ("", name)
        for x, numbers in of.items() if isinstance(of, dict) else [("", of)]:
            seeds = {str(seed): float(value) for seed, value in enumerate(numbers)}
            column = claim.get("column", "accuracy")
            places[Place(panel, row, str(x), column)] = SeedNumbers(seeds)
    (verdict,) = claims.judge(made, "small", Numbers(places))
    return verdict


def test_an_order_is_a_paired_t_test() -> None:
    """Differences 1, 5, 1, 4 points: t = 2.67 with 3 degrees of freedom."""
    verdict = judged({"kind": "order", "rows": ("a", "b")}, {"a": A, "b": B})
    p = stats.ttest_rel(A, B).pvalue
    assert (verdict.holds, verdict.p) == (None, f"{p:.3f}")
    low, high = stats.ttest_1samp(A - B, 0).confidence_interval(0.95)
    assert verdict.ours == f"a − b: +2.75 [{100 * low:+.2f} to {100 * high:+.2f}]"
    assert verdict.why == f"not significant, about {verdict.seeds} seeds would judge it"
    better = judged({"kind": "order", "rows": ("a", "b")}, {"a": A + 0.02, "b": B})
    worse = judged({"kind": "order", "rows": ("b", "a")}, {"a": A + 0.02, "b": B})
    assert (better.holds, worse.holds) == (True, False)


def test_a_lower_loss_is_better() -> None:
    claim = {"kind": "order", "rows": ("a", "b"), "column": "loss"}
    assert judged(claim, {"a": B, "b": A + 0.02}).holds is True


def test_a_margin_is_part_of_the_claim() -> None:
    """A lead of 4.75 points is one, is not 10, and leaves open whether it is 4."""
    values = {"a": A + 0.02, "b": B}
    holds = [
        judged({"kind": "beats", "rows": ("a", "b"), "margin": margin}, values).holds
        for margin in (0.0, 0.04, 0.1)
    ]
    assert holds == [True, None, False]


def test_equality_is_two_one_sided_tests() -> None:
    """Close means do not show it where seeds differ by more than the tolerance."""
    noise = np.array([0.05, -0.06, 0.02, -0.01])
    claim = {"kind": "near", "rows": ("a", "b"), "within": 0.01}
    assert judged(claim, {"a": B + noise, "b": B}).holds is None
    exact = judged(claim, {"a": B + noise / 50, "b": B})
    difference = noise / 50
    p = max(
        stats.ttest_1samp(difference, -0.01, alternative="greater").pvalue,
        stats.ttest_1samp(difference, 0.01, alternative="less").pvalue,
    )
    assert exact.holds is True
    assert exact.p == ("< 0.001" if p < 0.0005 else f"{p:.3f}")
    assert judged(claim, {"a": B + noise / 50 + 0.03, "b": B}).holds is False


def test_contradictions_are_corrected_for_the_comparisons_of_the_claim() -> None:
    """Row a is below b with p = 0.03, and above c and d: three comparisons, 3 * 0.03 > 0.05."""
    below = np.array([-0.01, -0.03, -0.012, -0.02, -0.004])
    p = float(stats.ttest_1samp(below, 0).pvalue)
    assert 0.05 / 3 < p < 0.05
    values = {"a": B[0] + below, "b": np.full(5, B[0])}
    others = {"c": B[0] + below - 0.1, "d": B[0] + below * 1.5 - 0.1}
    alone = judged({"kind": "beats", "rows": ("a", "b")}, values)
    assert (alone.holds, alone.p) == (False, f"{p:.3f}")
    three = judged({"kind": "beats", "rows": ("a", "b", "c", "d")}, values | others)
    assert (three.holds, three.p) == (None, f"{3 * p:.3f}")
    assert three.why.startswith("not significant")


def test_what_holds_needs_no_correction() -> None:
    """All comparisons must hold, each at the level: an intersection-union test."""
    lead = np.array([0.01, 0.03, 0.012, 0.02, 0.004])
    values = {"a": B[0] + lead, **{row: np.full(5, B[0]) for row in "bcdef"}}
    assert judged({"kind": "beats", "rows": ("a",)}, values).holds is True


def test_a_claim_that_is_true_is_rarely_contradicted() -> None:
    """20 equal rows, 200 draws: without a correction 40 % of the claims would fail."""
    g, fails = np.random.default_rng(0), 0
    for _ in range(200):
        values = {f"{k}": g.normal(size=6) for k in range(20)}
        values["winner"] = g.normal(size=6) + 0.0
        within = {"kind": "near", "rows": (*map(str, range(20)), "winner"), "within": 1e-9}
        fails += judged(within, values).holds is False
    assert fails <= 0.05 * 200 + 3 * (0.05 * 0.95 * 200) ** 0.5


def test_a_ratio_to_what_is_never_reached_judges_nothing() -> None:
    claim = {"kind": "ratio", "rows": ("a", "b"), "column": "rounds_to_best", "high": 0.77}
    verdict = judged(claim, {"a": [5, 6, 5], "b": [np.inf] * 3})
    assert (verdict.holds, verdict.why) == (None, "never reached with 3 of 3 seeds")
    assert judged(claim, {"a": [5, 6, 5], "b": [10, 11, 12]}).holds is True


def test_the_slope_of_a_power_law() -> None:
    """T^-1 times a factor of the seed has the slope -1 with every seed."""
    points = ({"x": 10.0, "num-server-rounds": 10}, {"x": 100.0, "num-server-rounds": 100})
    values = {"a": {x: [1 / x, 2 / x, 3 / x] for x in (10.0, 100.0)}}
    claim = {"kind": "slope", "rows": ("a",), "column": "loss", "low": -1.1, "high": -0.9}
    verdict = judged(claim, values, form="sweep", values=points, y="loss")
    assert verdict.holds is True
    assert verdict.ours.startswith("a, slope: -1")


@pytest.mark.parametrize(("seeds", "why"), [(0, "no numbers"), (1, "1 seed, no test"),
                                            (2, "2 seeds, no test")])  # fmt: skip
def test_too_few_seeds_judge_nothing(seeds: int, why: str) -> None:
    verdict = judged({"kind": "range", "rows": ("a",), "low": 0.5}, {"a": A[:seeds]})
    assert (verdict.verdict, verdict.why) == ("cannot be judged", why)


def test_what_the_paper_does_not_define_is_not_judged() -> None:
    verdict = judged({"kind": "undefined", "quote": "80 % symmetry", "note": "of what?"}, {"a": A})
    assert (verdict.verdict, verdict.holds, verdict.why) == (UNDEFINED, None, "of what?")


def test_only_asks_every_other_row_in_its_worst_panel() -> None:
    """Row b is above Local in panel 1 and below it in panel 2; row c is above it in both."""
    claim = {"kind": "only", "rows": ("b", "c", "Local")}
    one = {"1/b": B + 0.05, "2/b": B - 0.05, "1/c": B - 0.04, "2/c": B}
    alone = B + np.array([0.001, 0, 0, 0.001])
    local = {"1/Local": alone, "2/Local": alone}
    assert judged(claim, one | local).holds is True
    two = one | {"1/c": B + 0.03, "2/c": B + 0.04}
    assert judged(claim, two | local).holds is False


def test_numbers_are_read_as_they_were_written() -> None:
    numbers = Numbers({
        Place("p, 1", "a", "", "loss"): SeedNumbers({"0": 0.1 + 0.2, "2": np.inf}, 0.5, 0.25),
        Place("p, 1", "b", "8", "loss"): SeedNumbers({"2": 1.0}),
    })  # fmt: skip
    again = Numbers.read(numbers.as_csv())
    assert again.as_csv() == numbers.as_csv()
    assert again.at("p, 1", "a", "loss") == numbers.at("p, 1", "a", "loss")
