"""Page of a run: report.html, which opens offline and fetches nothing, and two PNG pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.app.config import schema
from coterie.app.config.keys import flatten
from coterie.app.experiments import methods
from coterie.app.report import (
    coefficients,
    decisions,
    diagnostics,
    figures,
    quality,
    section,
    words,
)
from coterie.app.report.panel import Heading, Panel
from coterie.app.report.run_data import block_sizes, page_data
from coterie.app.report.section import Page, Part, Sections
from coterie.app.report.worth import as_map
from coterie.app.runs import progress, units
from coterie.app.runs.diagnostics import card
from coterie.app.runs.progress import OVER, away
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import summarise
from coterie.datasets import account

_CARDS = 100
"""Maximum number of peers whose Dice scores are listed."""


def _dice(run: Run) -> Panel | None:
    """Return a line per peer with the Dice score of each class; None without segmentation."""
    lines = []
    cut = [f"The first {_CARDS} of {run.peers:,} peers."] * (run.peers > _CARDS)
    for peer in range(min(run.peers, _CARDS)):
        scores = card(run, peer).dice
        if not scores:
            break
        shown = ", ".join(f"{name} {score}" for name, score in scores.items())
        lines.append(f"{run.names[peer]}: {shown}")
    return Panel("dice", "Dice score by class", cut, lists={"": lines}) if lines else None


def _files(run: Run) -> Panel | None:
    """Return lines about the files of images and their properties; None without images."""
    read = [account.Account.of_json(each.account) for each in run.split or ()]
    lines = account.lines(account.named(read, run.names))
    return Panel("files", "Image files", lists={"": lines}) if lines else None


def _cost(run: Run) -> Panel | None:
    """Return the cost of a run; None without evaluated rounds."""
    rows = words.costs(run)
    caption = methods.all_to_all(run.settings)
    broadcast = f" (all-to-all: {caption})" if caption else ""
    about = f"Bytes: payload between peers, also between peers of one node{broadcast}."
    messages, seconds = (run.progress.get(key) for key in ("messages", "seconds"))
    if messages is not None and seconds is not None:
        count = units.plural(messages, "message")
        about += f" The relay exchanged {count} with the nodes in {units.duration(seconds)}."
    titles = ("", "Total", "Mean per peer", "Min", "Max", "Per peer and round")
    return Panel("cost", "Cost", [about], [*map(Heading, titles)], rows) if rows else None


def _configuration(run: Run) -> Panel:
    about = "All keys, as in config.toml. Running that file repeats the numbers."
    keys = [f"{key} = {schema.written(value)}" for key, value in flatten(run.config).items()]
    return Panel("configuration", "Configuration", [about], lists={"": keys})


SECTIONS: Sections[Run] = (
    decisions.of_run,
    lambda run: Part("learning.html.j2"),
    lambda run: Part("collaboration.html.j2"),
    coefficients.of_run,
    as_map,
    lambda run: Part("split.html.j2"),
    lambda run: Part("predictions.html.j2"),
    lambda run: Part("peers.html.j2"),
    diagnostics.of_run,
    diagnostics.at_thresholds,
    _dice,
    _files,
    quality.of_run,
    _cost,
    _configuration,
)
"""Sections in the order of the page. Figures are there before they have data, for live pages."""


def page(run: Run, pictures: Sequence[str] = ()) -> Page:
    """Return the page of a run; `pictures` are the names of the files beside it."""
    summary, data = summarise(run), page_data(run)
    headline = words.Headline(
        _notice(run.progress),
        words.outcome(run, summary),
        words.tiles(run, summary),
        progress.attendance(summary.get("took_part", {}), summary["rounds"]),
    )
    values = {
        "title": words.title(run.settings),
        "facts": [
            words.peers(run),
            *words.partition(run),
            *([] if run.settings.topology == "full" else [f"{run.settings.topology} topology"]),
            f"seed {summary['seed']}",
            units.plural(summary["rounds"], "round"),
            *words.protection(run, summary),
            words.date([run]),
        ],
        **vars(headline),
        "versions": ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
        "block_sizes": block_sizes(np.array(data["blocks"]), run.peers),
        "pictures": pictures,
        "data": data,
    }
    return Page("report.html", "run.html.j2", values, [headline, *section.made(SECTIONS, run)])


def write(run_dir: str | Path) -> Page:
    """Write report.html, curves.png and collaboration.png into a run directory; return the page."""
    run = Run.read(run_dir)
    drawn, _ = figures.write(figures.pictures(run), run.directory, "png")
    made = page(run, [path.name for path in drawn])
    made.write(run.directory)
    return made


def _notice(progress: Mapping[str, Any]) -> str:
    breaks = progress.get("breaks")
    text = f"This run was not continued exactly: {'; '.join(breaks)}." if breaks else ""
    missed = "".join(f"{line[:1].upper()}{line[1:]}. " for line in away(progress)).strip()
    return " ".join(filter(None, [text, missed, _unfinished(progress)]))


def _unfinished(progress: Mapping[str, Any]) -> str:
    if progress.get("status") in OVER:
        return ""
    text = f"This run {'failed' if progress.get('status') == 'failed' else 'has not finished'}"
    if "round" in progress and "rounds" in progress:
        text += f" (round {progress['round']} of {progress['rounds']})"
    error = progress.get("error")
    return text + (f": {error}" if error else "; the page shows the rounds so far.")
