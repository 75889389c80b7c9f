"""The papers' pages are those that their results make."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie.app.lab.reproduction import figures
from coterie.app.lab.reproduction.reproduce import FigureRequest, reproduce
from studies import papers
from studies.papers import Lead
from tests.app.lab.reproduction.test_reproduce import folder as folder  # the toy paper


def test_a_page_has_our_numbers_the_papers_and_the_verdicts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "out"
    for name in ("table-1", "figure-2"):
        reproduce(FigureRequest(f"toy/{name}", out=out, workers=1), Console(quiet=True))
    monkeypatch.setattr(papers, "PLACE", folder / "docs")
    papers.main([str(out)])
    page = (folder / "docs" / "toy.md").read_text()
    assert "\n# Toy: A title\n" in page
    assert "We repeated 2 of 3 tables and figures on smaller problems" in page
    assert "Of 2 sentences of the paper: 1 hold here, 1 do not hold here." in page
    figure = "[Table 1](#table-1-two-curvatures)"
    assert (
        f"| {figure} | “Averaging helps” |  | FedAvg − Local: +0.2343 |  | does not hold here |"
        " the same with all 3 seeds |"
    ) in page
    assert "| Local | 0.2657 ± 0 | 0.25 |" in page
    assert "| Local | 0.2812 ± 0 | 0.125 ± 0 |" in page  # (1 - eta)^2 / 2 at eta = 0.25 and 0.5
    assert "Not reproduced: its data are not public." in page
    made = json.loads((folder / "docs" / "toy" / "table-1" / "made.json").read_text())
    assert made["runs"] == 6
    front = (folder / "docs" / "index.md").read_text()
    assert "| [Toy: A title](toy.md) | 2 of 3 | 1 | 1 | 0 | 0 | 1 of 2 |" in front
    assert "[Table 1](toy.md#table-1-two-curvatures)" in front


def test_stored_numbers_give_the_verdicts_of_the_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims are judged again without runs, also after a change of a claim."""
    made = reproduce(FigureRequest("toy/table-1", out=folder / "out", workers=1),
                     Console(quiet=True))  # fmt: skip
    monkeypatch.setattr(papers, "PLACE", folder / "docs")
    papers.main([str(folder / "out")])
    (paper,) = (figures.read(name) for name in figures.names())
    kept = papers.results(paper)["table-1"]
    assert kept is not None
    assert kept.numbers.as_csv() == made.numbers.as_csv()
    assert tuple(kept.verdicts(made.figure)) == made.verdicts
    (near,) = (claim for claim in made.figure.claims if claim.kind == "near")
    wide = replace(made.figure, claims=(replace(near, within=0.3),))
    assert [verdict.holds for verdict in kept.verdicts(wide)] == [True]


def test_leads_and_their_rank_correlation() -> None:
    """Four methods of which two change places: 1 - 6 (1 + 1) / (5 (25 - 1)) with Local's 0."""
    of = [Lead("a", 4, 40), Lead("b", 3, 10), Lead("c", 2, 20), Lead("d", -1, -5)]
    assert papers.rank_correlation(of) == pytest.approx(0.9)
    drawn = papers.slopes(("paper", "digits (ours)"), of, "loss")
    assert [drawn.count(f"{name} ") for name in "abcd"] == [1, 1, 1, 1]
    assert drawn.count("<line") == 5


@pytest.mark.parametrize("name", figures.names())
def test_the_pages_are_up_to_date(name: str) -> None:
    """After a change: `python -m studies.papers`."""
    paper = figures.read(name)
    if not any(papers.results(paper).values()):
        pytest.skip("no results of this paper are kept")
    page = (papers.PLACE / f"{name}.md").read_text(encoding="utf-8")
    assert page == papers.page(paper)
    assert "&lt<" not in page, "comparisons are split between two, not in an escaped sign"
    for file, _, drawing in papers.charts(paper, papers.results(paper)):
        assert (papers.PLACE / file).read_text(encoding="utf-8") == drawing


@pytest.mark.parametrize("name", figures.names())
def test_numbers_per_seed_have_the_means_of_the_tables(name: str) -> None:
    """results.csv and seeds.csv are of the same runs."""
    for kept in papers.results(figures.read(name)).values():
        if kept is None:
            continue
        for place, line in kept.lines.items():
            if line["mean"]:
                values = [*kept.numbers.places[place].values.values()]
                assert np.nanmean(values) == pytest.approx(float(line["mean"]), rel=1e-12)


def test_the_front_page_is_up_to_date() -> None:
    assert (papers.PLACE / "index.md").read_text(encoding="utf-8") == papers.index()
