"""Introduce a run on the terminal: its configuration, the split of the examples, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.app.runs import judged, units
from coterie.datasets import account
from coterie.datasets.quality import survey, warnings
from coterie.strategies.names import display

if TYPE_CHECKING:
    from coterie.app.config.config import Config
    from coterie.datasets.problem import Problem

ROWS = 20
_CLASSES = 40  # maximum characters of their names


def introduce(config: Config, problem: Problem, place: str, console: Console) -> None:
    """Print the introduction of a run.

    `place` names its place in words: this process, Flower nodes or a deployment.
    """
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
            limit = f"at most {partition.limit} examples each (partition.samples-per-peer)"
            words.append(limit)
    return ", ".join(words)


def data_quality(problem: Problem, console: Console) -> None:
    """Print accounts of images, peers of one class, and the most severe problems of the columns."""
    for line in account.lines(account.named(problem.accounts, problem.names)):
        console.print(line, soft_wrap=True, markup=False)
    found = judged.one_class_in(problem)
    for peer, finding in found.items():
        name = problem.names[peer] if problem.names else f"peer {peer}"
        console.print(f"{name}: {finding}", soft_wrap=True)
    for line in warnings(survey(problem), problem.names, problem.name):
        console.print(f"data quality: {line}", soft_wrap=True)


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
        sizes = (_size(row[part]) for part in ("train", "validation", "test"))
        counts = "-" if labels is None else " ".join(map(str, labels))
        table.add_row(row["name"], "-" if cluster is None else str(cluster), *sizes, counts)
    if len(rows) > ROWS:
        table.add_row("...", "", "", "", "", f"{len(rows)} peers in all")
    return table


def _size(part: Mapping[str, Any]) -> str:
    return f"{part['size']} ({part['groups']})" if "groups" in part else str(part["size"])
