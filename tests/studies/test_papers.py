"""The papers' pages are those that their results make."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie.app.lab.reproduction import figures
from coterie.app.lab.reproduction.figures import Claim, Figure, Panel, Row
from coterie.app.lab.reproduction.reproduce import FigureRequest, reproduce
from coterie.app.lab.reproduction.results import Numbers, Place, SeedNumbers
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
    assert "| [Toy: A title](toy.md) | 2 of 3 | 1 | 1 | 0 | 0 |  | 1 of 2 |" in front
    assert "| all |  | 1 | 1 | 0 | 0 |  |  |" in front
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


def test_a_sentence_is_counted_once_with_all_comparisons_of_its_figures() -> None:
    """It fails in one of two figures with p = 0.03: of two comparisons, that is open."""
    below = np.array([-0.01, -0.03, -0.012, -0.02, -0.004])
    group = []
    for name, difference in (("table-1", -below), ("table-2", below)):
        claim = Claim(f"in {name}", "order", quote="A wins", rows=("a", "b"), note=name)
        rows, panels = (Row("a"), Row("b")), (Panel(small="default"),)
        figure = Figure(name, name, "", rows=rows, panels=panels, claims=(claim,))
        values = {
            Place("", row, "", "accuracy"): SeedNumbers(
                {str(seed): 0.5 + sign * float(x) for seed, x in enumerate(difference)}
            )
            for row, sign in (("a", 1), ("b", 0))
        }
        group.append((figure, claim, Numbers(values)))
    verdicts = [papers.together([each]).verdict for each in group]
    assert [verdict.holds for verdict in verdicts] == [True, False]
    both = papers.together(group)
    assert [figure.name for figure in both.figures] == ["table-1", "table-2"]
    assert both.verdict.holds is None
    assert both.verdict.ours.startswith("Table 2, a − b: -1.52")
    assert both.verdict.why.endswith("table-1. table-2.")
    assert both.is_sentence


@pytest.mark.parametrize("name", figures.names())
def test_figures_have_the_seeds_that_their_file_fixes(name: str) -> None:
    """More seeds for a figure whose claims are open would be chosen by its results."""
    paper = figures.read(name)
    for figure, kept in papers.results(paper).items():
        if kept and kept.made["runs"]:
            seeds = max(len(of.values) for of in kept.numbers.places.values())
            assert seeds == paper.figures[figure].seeds, figure


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


def test_numbers_at_the_papers_size_are_kept_beside_the_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "docs"
    shutil.copytree(papers.PLACE / "wga", place / "wga")
    (place / "wga" / "figure-2" / papers.AT_PAPER).unlink()
    monkeypatch.setattr(papers, "PLACE", place)
    paper = figures.read("wga")
    assert "it was not run" in papers.needs(paper.figures["figure-2"], is_run=False)
    assert "--size paper" not in papers.page(paper)
    made = tmp_path / "runs" / "paper" / "wga" / "figure-2"
    made.mkdir(parents=True)
    text = (place / "wga" / "figure-2" / "results.csv").read_text("utf-8")
    (made / "results.csv").write_text(text.replace("0.0249246", "0.0024785"), encoding="utf-8")
    papers.copy(tmp_path / "runs")
    after = papers.page(paper)
    assert after.index("0.02492 ±") < after.index("figure-2 --size paper") < after.index("0.002479")
