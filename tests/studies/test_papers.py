"""The papers' pages are those that their results make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from coterie.app.reproduction import figures
from coterie.app.reproduction.reproduce import FigureRequest, reproduce
from studies import papers
from tests.app.reproduction.test_reproduce import folder as folder  # the toy paper


def test_a_page_has_our_numbers_the_papers_and_the_verdicts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "out"
    for name in ("table-1", "figure-2"):
        reproduce(FigureRequest(f"toy/{name}", out=out, workers=1), Console(quiet=True))
    monkeypatch.setattr(papers, "PLACE", folder / "docs")
    papers.main([str(out)])
    page = (folder / "docs" / "toy.md").read_text()
    assert page.splitlines()[2] == "# Toy: A title"
    assert "We repeated 2 of 3 tables and figures on smaller problems" in page
    assert "1 of 3 claims of the paper hold, 2 do not, and 0 cannot be judged." in page
    assert "Comparisons of runs with closed forms that agree: 1." in page
    drawn = (folder / "docs" / "toy" / "claims.svg").read_text()
    colours = [drawn.count(f'fill="{colour}"><title>') for colour in papers.COLOURS.values()]
    assert colours == [1, 2, 0], "a dot for each claim"
    assert "| Local | 0.2657 ± 0 | 0.25 |" in page
    assert "| Local | 0.2812 | 0.125 |" in page  # (1 - eta)^2 / 2 at eta = 0.25 and 0.5
    assert "Not reproduced: its data are not public." in page
    assert "- **Does not hold**: averaging is better. FedAvg 0.5 > Local 0.2657" in page
    made = json.loads((folder / "docs" / "toy" / "table-1" / "made.json").read_text())
    assert made["runs"] == 4
    front = (folder / "docs" / "index.md").read_text()
    assert "| [Toy: A title](toy.md) | 2 of 3 | 1 | 2 | 0 | 1 |" in front
    assert "(toy.md#table-1-two-curvatures)" in front


@pytest.mark.parametrize("name", figures.names())
def test_the_pages_are_up_to_date(name: str) -> None:
    """After a change: `python -m studies.papers`."""
    paper = figures.read(name)
    if not any(papers.results(paper).values()):
        pytest.skip("no results of this paper are kept")
    assert (papers.PLACE / f"{name}.md").read_text(encoding="utf-8") == papers.page(paper)
    drawn = (papers.PLACE / name / "claims.svg").read_text(encoding="utf-8")
    assert drawn == papers.claims_figure(paper, papers.results(paper))


@pytest.mark.parametrize("name", figures.names())
def test_kept_results_judge_the_claims_of_the_papers_file(name: str) -> None:
    """After a change of claims: `coterie reproduce` judges finished runs again."""
    paper = figures.read(name)
    for figure, kept in papers.results(paper).items():
        if kept is not None:
            texts = [claim.text for claim in paper.figures[figure].claims]
            assert [claim["claim"] for claim in kept.claims] == texts, f"{name}/{figure}"


def test_the_front_page_is_up_to_date() -> None:
    assert (papers.PLACE / "index.md").read_text(encoding="utf-8") == papers.index()
