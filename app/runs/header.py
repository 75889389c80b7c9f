"""Header of a run on the terminal (keys, split of the examples, warnings), and its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from coterie.app.runs import quality, units
from coterie.app.runs.progress import RunState
from coterie.datasets import account
from coterie.datasets.quality import of_labels, survey, warnings
from coterie.strategies.names import display

if TYPE_CHECKING:
    from coterie.app.config.config import Config
    from coterie.datasets.problem import Problem

ROWS = 20
_PLAIN_SECONDS = 10.0
_CLASSES = 40  # maximum characters of their names


def header(config: Config, problem: Problem, place: str, console: Console) -> None:
    """Print the header of a run in a `place`: this process, Flower nodes or a deployment."""
    what = f"{display(config.label)} on {display(config.dataset)}"
    console.print(f"{what}: {division(config, problem)}; {place}", soft_wrap=True)
    console.print(split(problem))
    key, share = config.validation
    if config.row.validates and share:
        name = display(config.label)
        console.print(f"{name} evaluates models on validation data: {key} = {share:g}")
    data_quality(problem, console)
    for line in config.strategy().cautions():
        console.print(f"warning: {line}")


def division(config: Config, problem: Problem) -> str:
    """Return number of peers, division of the data, clusters and limits in words."""
    words = [units.plural(config.peers, "peer")]
    partition = config.partition
    if config.source.divided:
        clusters = 0 if problem.clusters is None else len(set(problem.clusters.tolist()))
        words.append(partition.kind + (f" in {clusters} clusters" if clusters > 1 else ""))
        if partition.limit:
            words.append(f"at most {partition.limit} examples each (partition.samples-per-peer)")
    return ", ".join(words)


def data_quality(problem: Problem, console: Console) -> None:
    """Print accounts of images, peers of one class, and the most severe problems of the columns."""
    of_files = account.lines(account.named(problem.accounts, problem.names))
    for line in (*of_files, *problem.left_out):
        console.print(line, soft_wrap=True, markup=False)
    for peer, finding in quality.one_class_in(problem).items():
        name = problem.names[peer] if problem.names else f"peer {peer}"
        console.print(f"{name}: {finding}", soft_wrap=True, markup=False)
    of_columns = warnings(survey(problem), problem.names, problem.name)
    for line in filter(None, (of_labels(problem), *of_columns)):
        console.print(f"data quality: {line}", soft_wrap=True, markup=False)


def split(problem: Problem) -> Table:
    """Return the table of the split: a row per peer, for the first `ROWS` peers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("peer")
    of = "" if problem.groups is None else " (groups)"
    for title in ("cluster", f"train{of}", f"validation{of}", f"test{of}"):
        table.add_column(title, justify="right")
    classes = ", ".join(problem.classes) if problem.task == "classification" else ""
    brief = classes if 0 < len(classes) <= _CLASSES else "each class"
    table.add_column(f"training examples of {brief}")
    rows = problem.describe()
    for row in rows[:ROWS]:
        cluster, labels = row["cluster"], row["train"]["labels"]
        parts = (row[part] for part in ("train", "validation", "test"))
        sizes = (f"{p['size']}" + (f" ({p['groups']})" if "groups" in p else "") for p in parts)
        counts = "-" if labels is None else " ".join(map(str, labels))
        table.add_row(row["name"], "-" if cluster is None else str(cluster), *sizes, counts)
    if len(rows) > ROWS:
        table.add_row("...", "", "", "", "", f"{len(rows)} peers in all")
    return table


class Display:
    """Context manager with a live line on a terminal, or occasional plain lines elsewhere."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, state="starting")
        self._spoken = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, now: Mapping[str, Any]) -> None:
        """Update the display with the content of progress.json."""
        if not now:
            return
        state = RunState(now)
        text = state.waiting() or (state.line if state.is_measured else "starting")
        self._bar.update(self._task, completed=now["round"], state=text)
        if not self._console.is_terminal and time.monotonic() - self._spoken > _PLAIN_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"round {now['round']}/{now['rounds']}  {text}")
