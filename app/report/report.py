"""Write a run's report: report.html, one self-contained page, and two pictures beside it."""

from __future__ import annotations

from pathlib import Path

from app.report import report_figures
from app.report import report_words as words
from app.report.report_data import page_data
from app.report.report_page import render
from app.runs import atomic
from app.runs.rundir import Run
from app.runs.summary import summarise


def write(run_dir: str | Path) -> Path:
    """Write report.html, curves.png and collaboration.png into a run directory.

    The run may be unfinished; the page says so. It opens offline and fetches nothing.

    Parameters
    ----------
    run_dir : what a run left, see `rundir.Run`.

    Returns
    -------
    path of report.html.

    Raises
    ------
    ResultsError
        If the directory is not a run's or a file in it is broken.
    """
    run = Run.read(run_dir)
    report_figures.draw(run)
    page = render(run, summarise(run), page_data(run), words.date([run]))
    target = run.directory / "report.html"
    atomic.write(target, page)
    return target
