"""Tables of real institutions: intervals by hand, and the study on one included set."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coterie.app.comparisons import tune
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.preflight import check
from coterie.app.config.registry import METHODS
from coterie.app.lab.catalogue.fetch import fetch
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.runs.rundir import Floats
from studies import institutions
from studies.institutions import by_kind, by_method, counts, gains, interval, significant
from studies.measured import Result, read, write
from studies.tables import fill

PUBLISHED = Path(__file__).parents[2] / institutions.PAGE


def test_the_interval_is_that_of_the_product() -> None:
    """Means 1, 3 and 5: S2 = 4; (1/3 + 1/2) S2 = 10/3; t of 2 degrees of freedom is 4.3027.

    Two institutions 20 apart have a variance of 200, and their mean 100: more than S2.
    """
    mean_s1 = np.array([[1.0], [3.0], [5.0]])
    mean, half = interval(mean_s1, ratio=0.5)
    assert mean == 3
    assert half == pytest.approx(4.3027 * np.sqrt(10 / 3), abs=1e-3)
    _, wide = interval(mean_s1 + np.array([10.0, -10.0]), ratio=0.5)
    assert wide == pytest.approx(4.3027 * np.sqrt(100 * 5 / 6), abs=1e-3)


def test_planned_methods_are_corrected_among_themselves() -> None:
    """p = 0.02 of ditto alone is significant; among three others 0.03 is not, but 0.001 is."""
    unit = np.array([[-1.0], [0.0], [1.0]])

    def gain(p: float) -> Floats:
        return np.asarray(unit + float(stats.t.isf(p / 2, 2)) / np.sqrt(3))

    others = {"cobo": gain(0.03), "dpfl": gain(0.04), "pens": gain(0.001)}
    assert significant({"ditto": gain(0.02)} | others, 0.0) == {"ditto", "pens"}
    found = significant({"ditto": gain(0.02), "mixed": gain(0.04)} | others, 0.0)
    assert found == {"ditto", "mixed", "pens"}, "Holm: 0.02 x 2 and 0.04"


def test_counts_name_what_correction_leaves() -> None:
    varied = np.array([[0.0, 0.1], [0.1, 0.0], [0.05, 0.1]])
    sets = [
        result(m, (60 + varied + g).tolist(), (80 + varied).tolist())
        for m, g in (("local", 0.0), ("logistic", 0.0), ("ditto", 9 * varied + 9))
    ]
    lines = counts({"a": sets})
    assert "| local | accuracy | 2 | 1 | 0 | ditto (a) | none |" in lines
    assert "| logistic | auroc | 2 | 0 | 0 | none | none |" in lines


def result(method: str, accuracy: list[list[float]], auroc: list[list[float]]) -> Result:
    sizes, positives = np.array([30.0, 70.0]), np.array([0.1, 0.6])
    named = ("small", "large")
    tests = np.zeros(2)
    values = {"accuracy": np.array(accuracy), "auroc": np.array(auroc)}
    return Result(method, "rate 1", named, sizes, tests, positives, values)


MADE = [
    result("local", [[50, 80], [52, 82], [54, 84]], [[np.nan, 90]] * 3),
    result("fedavg", [[60, 70], [62, 72], [64, 74]], [[np.nan, 80]] * 3),
]


def test_a_row_has_the_worst_institution_and_what_each_gains() -> None:
    """Gains are +10 and -10 in every split: one gains, one loses, and their mean is 0.

    Its interval is that of the spread, t = 4.3027 times the root of 200 / 2 / 3.
    """
    local, fedavg = by_method(MADE)[2:]
    assert local.startswith("| local | 67.0 ± ")
    assert "| small 52.0 | 90.0 ± 0.0 |" in local
    assert "| +0.0 ± 24.8 | small 62.0 | 80.0 ± 0.0 | 1 | 1 | rate 1 |" in fedavg


def test_institutions_without_the_measure_are_left_out_of_gains() -> None:
    """AUROC of the large institution alone: 90 against 80 in every split."""
    assert gains({"a": MADE})[2:] == ["| fedavg | +0.0 ± 24.8 | +0.0 |"]
    assert gains({"a": MADE}, "fedavg", "auroc")[2:] == ["| local | +10.0 ± 0.0 | +10.0 |"]
    nobody = [result("local", [[50, 80]] * 3, [[np.nan, np.nan]] * 3), MADE[1]]
    assert gains({"a": nobody}, "local", "auroc")[2:] == []


def test_gains_have_their_mean_over_the_sets() -> None:
    """0 in one set, 8 in the other (75 against 67): 4 in the mean."""
    better = [MADE[0], result("fedavg", [[60, 90]] * 3, [[np.nan, 90]] * 3)]
    row = gains({"a": MADE, "b": better})[-1]
    assert row.endswith("| +4.0 |")


def test_results_are_written_and_read(tmp_path: Path) -> None:
    write(tmp_path / "a" / "set.csv", MADE)
    results = read(tmp_path / "a" / "set.csv")
    assert [result.method for result in results] == ["local", "fedavg"]
    for made, result in zip(MADE, results, strict=True):
        assert (result.names, result.settings) == (made.names, made.settings)
        for key in ("samples", "tests", "positives"):
            np.testing.assert_array_equal(getattr(result, key), getattr(made, key))
        for measure, value_sn in made.values.items():
            np.testing.assert_array_equal(result[measure], value_sn)


def test_the_page_has_the_tables_of_the_files_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PUBLISHED.read_text())
    common = institutions.measured(PUBLISHED.with_suffix(""))
    own = institutions.measured(PUBLISHED.with_suffix("") / institutions.OWN)
    fill(page, institutions.blocks(common, own))
    assert page.read_text() == PUBLISHED.read_text()


def test_institutions_are_grouped_by_size_and_distance() -> None:
    lines = by_kind({"a": MADE}, ["fedavg"])[2:]
    assert lines == [
        "| training rows 0 to 40 | 1 | +10.0 (0 %) |",
        "| training rows 60 to 100 | 1 | -10.0 (100 %) |",
        "| distance of positives, points from 20 | 2 | +0.0 (50 %) |",
    ]


def test_every_method_is_compared_that_can_run_on_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fetch("heart-disease", SETS["heart-disease"], institutions.DATA)
    _, keys = read_items(["institutions/heart-disease"])
    refused = set()
    for method in METHODS:
        try:
            check(Config.from_flat({**tune.with_validation(keys), "method": method}))
        except ConfigError:
            refused.add(method)
    assert refused == {"oracle", "ifca", "fedpac", "fedproto", "boosting"}
    assert {*institutions.COMPARED} == {*METHODS, "fedavg-own-intercept"} - refused


@pytest.mark.long
def test_the_study_on_an_included_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["institutions", "heart-disease", "azpro", "--workers", "1"])
    monkeypatch.setattr(tune, "START", (0,))
    monkeypatch.setattr(tune, "EXTENSIONS", 0)
    few = ("local", "fedavg")
    settings = {"SEEDS": 3, "COMPARED": few, "SCALED": few, "SHOWN": ("fedavg",)}
    for name, value in settings.items():
        monkeypatch.setattr(institutions, name, value)
    institutions.PAGE.parent.mkdir(parents=True)
    blocks = [
        f"<!-- {name} -->\n\nold\n\n<!-- / -->"
        for name in ("heart-disease methods", "scales", "azpro methods")
    ]
    institutions.PAGE.write_text("\n\n".join(["# Page", *blocks, "End.\n"]))
    institutions.main()
    page = institutions.PAGE.read_text()
    assert page.startswith("# Page\n\n<!-- heart-disease methods -->\n\n| method |")
    assert "\n| fedavg | " in page
    assert "\n| heart-disease, own | " in page
    assert page.endswith(f"\n{blocks[2]}\n\nEnd.\n")  # azpro was not fetched
    first, second = institutions.measured(institutions.RESULTS)["heart-disease"][:2]
    assert first.names == ("cleveland", "hungarian", "switzerland", "va")
    assert (first.samples[2], first.tests[2]) == (21, 16)  # 46 rows: 34 %, 20 %, and the rest
    gain = (second["accuracy"] - first["accuracy"]).mean()
    assert f"\n| fedavg | {second['accuracy'].mean():.1f} ± " in page
    assert f" | {gain:+.1f} ± " in page or f"**{gain:+.1f} ± " in page
