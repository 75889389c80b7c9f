"""Tables of the study of any model, on one included set."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.app.runs.rundir import Run
from studies import any_model


@pytest.mark.slow
def test_the_study_on_an_included_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is the mean over divisions of the mean gain over institutions, by hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["any_model", "heart-disease", "azpro", "--workers", "1"])
    settings = {"SEEDS": 2, "MODELS": ("logistic",), "METHODS": ("local", "mixture")}
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
        for seed in (0, 1)
    ]
    shown = re.findall(r"\| logistic \| mixture \| \**([-+.\d]+) ± ", page)
    assert float(shown[0]) == pytest.approx(np.mean(gains), abs=0.051)
    assert len(shown) == len(any_model.DECIMALS)
    assert "| logistic | mixture | 4 | " in page
    assert {name for name, _, _ in any_model.measured()} == {"heart-disease"}, "azpro not fetched"
