"""Who holds what, for a terminal: the split of the examples among the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from datasets.problem import Problem

ROWS = 20


def table(problem: Problem) -> Table:
    """A line a peer, the first `ROWS` of them."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("peer", "cluster", "train", "validation", "test"):
        table.add_column(title, justify="right")
    table.add_column("training examples of each class")
    rows = problem.describe()
    for row in rows[:ROWS]:
        cluster, labels = row["cluster"], row["train"]["labels"]
        sizes = (str(row[part]["size"]) for part in ("train", "validation", "test"))
        counts = "-" if labels is None else " ".join(map(str, labels))
        table.add_row(str(row["peer"]), "-" if cluster is None else str(cluster), *sizes, counts)
    if len(rows) > ROWS:
        table.add_row("...", "", "", "", "", f"{len(rows)} peers in all")
    return table
