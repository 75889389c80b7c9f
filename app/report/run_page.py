"""Write a run's report: report.html, a self-contained page, and two PNG pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.app.experiments import methods
from coterie.app.report import decisions, diagnostics, html, png, quality, words
from coterie.app.report.run_data import page_data
from coterie.app.runs import atomic, files, limited, units
from coterie.app.runs.progress import OVER
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import summarise
from coterie.datasets import account

_CARDS = 100
"""Maximum number of peers whose Dice scores are listed."""


def write(run_dir: str | Path) -> Path:
    """Write report.html, curves.png and collaboration.png into a run directory; return the first.

    The page opens offline and fetches nothing. It states if the run is unfinished. ResultsError: it
    is not a run directory, or a file in it is damaged.
    """
    run = Run.read(run_dir)
    pictures = png.draw(run)
    target = run.directory / "report.html"
    atomic.write(target, render(run, [path.name for path in pictures]))
    return target


def render(run: Run, pictures: list[str]) -> str:
    """Return the page's HTML; `pictures` are the file names of the pictures."""
    return html.render("run.html.j2", **content(run), pictures=pictures)


def content(run: Run) -> dict[str, Any]:
    """Return the values that fill the page's template, except the pictures."""
    summary = summarise(run)
    return {
        "title": words.title(run.config),
        "facts": [
            words.peers(run),
            *words.partition(run),
            *words.graph(run),
            f"seed {summary['seed']}",
            units.plural(summary["rounds"], "round"),
            *words.protection(run, summary),
            words.date([run]),
        ],
        "notice": _notice(run.progress),
        "outcome": " ".join([words.outcome(run, summary), *limited.sentences(run)]),
        "decisions": decisions.of_run(run),
        "tiles": words.tiles(run, summary),
        "costs": words.costs(run),
        "diagnostics": diagnostics.table(run),
        "quality": quality.table(run),
        "files": _files(run),
        "dice": _dice(run),
        "traffic": _traffic(summary),
        "all_to_all": methods.all_to_all(run.config),
        "config": run.config,
        "versions": ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
        "data": page_data(run),
    }


def _dice(run: Run) -> list[str]:
    """Return a line per peer with the Dice score of each class; empty without segmentation."""
    lines = []
    for peer in range(min(run.peers, _CARDS)):
        card = files.json_of(run.directory, f"models/peer-{peer:04d}.json", dict) or {}
        scores = card.get("dice", {})
        if not isinstance(scores, dict) or not scores:
            break
        shown = ", ".join(f"{name} {score}" for name, score in scores.items())
        lines.append(f"{run.names[peer]}: {shown}")
    return lines


def _files(run: Run) -> list[str]:
    """Return lines about the files of images and their properties; empty without images."""
    read = [account.Account.of_json(each.get("account")) for each in run.split or ()]
    return account.lines(account.named(read, run.names))


def _notice(progress: Mapping[str, Any]) -> str:
    breaks = progress.get("breaks")
    text = f"This run was not continued exactly: {'; '.join(breaks)}." if breaks else ""
    return " ".join(filter(None, [text, _unfinished(progress)]))


def _unfinished(progress: Mapping[str, Any]) -> str:
    if progress.get("status") in OVER:
        return ""
    text = f"This run {'failed' if progress.get('status') == 'failed' else 'has not finished'}"
    if "round" in progress and "rounds" in progress:
        text += f" (round {progress['round']} of {progress['rounds']})"
    error = progress.get("error")
    return text + (f": {error}" if error else "; the page shows the rounds so far.")


def _traffic(summary: Mapping[str, Any]) -> str:
    if summary["messages"] is None or summary["wall_seconds"] is None:
        return ""
    messages = units.plural(summary["messages"], "message")
    return f"{messages} with the nodes in {units.duration(summary['wall_seconds'])}"
