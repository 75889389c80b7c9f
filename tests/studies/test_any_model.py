"""Tables of the study of any model, on one included set."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.app.runs.rundir import Run
from studies import any_model, limits
from studies.measured import Result
from studies.tables import fill

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = tmp_path / "page.md"
    page.write_text(any_model.PAGE.read_text())
    fill(page, any_model.blocks(any_model.measured()))
    assert page.read_text() == any_model.PAGE.read_text()


def test_the_front_page_has_the_numbers_of_loans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (row,) = re.findall(r"^\| loans \|.*boosted.*$", any_model.PAGE.read_text(), re.M)
    stacked, pooled, averaged = re.findall(r"\+([\d.]+) ±", row)[1:]
    (paragraph,) = re.findall(r"^\*\*Trees\*\*.*?\n\n", Path("README.md").read_text(), re.M | re.S)
    assert re.findall(r"\d\.\d", paragraph) == [stacked, pooled, averaged]


def test_the_highest_mean_stands_with_its_gain() -> None:
    """Gains 1, 3 and 5 points over three divisions, a test row per training row, the best of two.

    The interval is 6.2053 (t with two degrees of freedom, 1 - 0.05 / 4) times the root of
    4 (1/3 + 1).
    """
    base, worse, better = (
        Result("", "", ("a",), np.ones(1), np.ones(1), np.ones(1), {"accuracy": np.array(of)})
        for of in ([[60.0], [62.0], [64.0]], [[60.0]] * 3, [[61.0], [65.0], [69.0]])
    )
    assert any_model.best({"one": worse, "two": better}, base) == "two +3.0 ± 14.3"


@pytest.mark.slow
def test_the_study_on_an_included_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is the mean over divisions of the mean gain over institutions, by hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["any_model", "heart-disease", "azpro", "--workers", "1"])
    settings = {"SEEDS": 3, "MODELS": ("logistic",), "METHODS": ("local", "mixture", "stacking")}
    for name, value in settings.items():
        monkeypatch.setattr(any_model, name, value)
    any_model.PAGE.parent.mkdir(parents=True)
    tables = (*any_model.DECIMALS, "costs", "institutions")
    any_model.PAGE.write_text("\n".join(f"<!-- {name} -->\n<!-- / -->" for name in tables))
    any_model.main()
    page = any_model.PAGE.read_text()
    files = (any_model.OUT / "heart-disease" / "logistic").glob("*/summary.json")
    made = [Run.read(file.parent) for file in files]
    runs = {(run.config["method"], run.config["seed"]): run for run in made}
    gains = [
        100 * float(np.nanmean(runs["mixture", seed].last() - runs["local", seed].last()))
        for seed in (0, 1, 2)
    ]
    shown = re.findall(r"\| logistic \| mixture \| \**([-+.\d]+) ± ", page)
    assert float(shown[0]) == pytest.approx(np.mean(gains), abs=0.051)
    assert len(shown) == len(any_model.DECIMALS)
    assert "| logistic | mixture | 4 | " in page
    assert {name for name, _, _ in any_model.measured()} == {"heart-disease"}, "azpro not fetched"
    reported = 100 * np.mean([runs["stacking", seed].last() for seed in (0, 1, 2)])
    _, _, with_limits, *_, rows = limits.line("heart-disease", "logistic").strip("| ").split(" | ")
    assert float(with_limits) == pytest.approx(reported, abs=0.0051), "as the run reported"
    assert re.fullmatch(r"\d+ of 756", rows)
