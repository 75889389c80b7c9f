"""Results by peer: final result of each peer under each method, as a table and as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from coterie.app.experiments.measures import gains
from coterie.app.report.comparison import Comparison
from coterie.app.report.panel import Cell, Heading, Panel
from coterie.app.runs import atomic, quality, units
from coterie.app.runs.quality import PARTS
from coterie.app.runs.rundir import Floats, Run

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "comparison-peers.csv"
SHOWN = 100
"""Number of peers that the page lists; the file has all."""


def compared(comparison: Comparison) -> Panel | None:
    """Return the results by peer, means over the seeds; None without measurements."""
    # A peer is identified by its name: where the split of each seed has other institutions, a row
    # has the seeds that have the peer. Methods whose peers have different data have the file only.
    import pandas as pd

    table = comparison.table
    runs = [
        (row.method, run, local)
        for row in table.rows
        for run, local in zip(row.runs, row.local, strict=True)
        if len(run.rounds)
    ]
    if not runs:
        return None
    frame = pd.concat([_of(*each) for each in runs])
    written = {FILE: atomic.csv_of(frame)}
    if not table.has_same_data:
        return Panel("by-peer", "Results by peer", [f"Peers have different data: see {FILE}."],
                     written=written)  # fmt: skip
    is_accuracy = all(run.has_accuracy for _, run, _ in runs)
    local_rows = [row.method for row in table.rows if row.is_local]
    frame.loc[frame["method"].isin(local_rows), "gain"] = np.nan
    value = "test_accuracy" if is_accuracy else "test_loss"
    means = frame.groupby(["peer_name", "method"])[[value, "gain"]].mean()
    sizes = frame.groupby("peer_name", sort=False)[list(frame.columns[4:])].mean()
    too_few = {
        run.names[p]: why for _, run, _ in runs for p, why in quality.too_few_rows(run).items()
    }
    rows = [
        (name, [*_counts(sizes.loc[name]),
                *(Cell(too_few[name]) if name in too_few
                  else _cell(means.reindex([(name, row.method)]).iloc[0].to_numpy(), is_accuracy)
                  for row in table.rows)])
        for name in sizes.index[:SHOWN]
    ]  # fmt: skip
    what = "Test accuracy in percent" if is_accuracy else "Test loss"
    seeds = ", mean over seeds" if comparison.has_several else ""
    about = [f"{what} of each peer’s personal model at the end{seeds}."]
    if local_rows and len(table.rows) > 1:
        change = "the points over" if is_accuracy else "the reduction against"
        about.append(f"Below it {change} local; in red where training alone is better.")
    if len(sizes) > SHOWN:
        about.append(f"The first {SHOWN} of {len(sizes)} peers; {FILE} has all.")
    better = "high" if is_accuracy else "low"
    columns = [Heading(name, "") for name in ("peer", "training", "validation", "test")]
    columns += [Heading(row.label, better) for row in table.rows]
    return Panel("by-peer", "Results by peer", [" ".join(about)], columns, rows, written=written)


def _of(method: str, run: Run, local: Run | None) -> DataFrame:
    """Return a row per peer of a run, with numbers of groups if examples have groups."""
    import pandas as pd

    columns = {
        "samples": run.samples,
        "test_accuracy": run.last(),
        "test_loss": run.last("test_loss"),
        "gain": None if local is None else gains(run, local),
        "validation": run.sizes("validation"),
        "test": run.sizes("test"),
    }
    if run.is_grouped:
        columns |= {f"{part}_groups": run.sizes(part, in_groups=True) for part in PARTS}
    numbers = {name: np.nan if of_n is None else of_n for name, of_n in columns.items()}
    first = {"method": method, "seed": run.settings.seed, "peer": range(run.peers)}
    return pd.DataFrame({**first, "peer_name": run.names, **numbers})


def _cell(result: Floats, is_accuracy: bool) -> Cell:
    """Return the cell of a peer's value and gain, (2,), which are NaN where unknown."""
    value, gain = result
    factor, form = (100, ".1f") if is_accuracy else (1, ".3g")
    if np.isnan(value):
        return Cell(units.NONE)
    change = "" if np.isnan(gain) else units.signed(factor * gain, form)
    mark = "harm" if change.startswith("-") else None
    return Cell(f"{factor * value:{form}}", change, float(value), mark)


def _counts(sizes: Mapping[str, float]) -> list[Cell]:
    """Write the mean number of training, validation and test examples, and of their groups."""
    counts = []
    for part, column in zip(PARTS, ("samples", "validation", "test"), strict=True):
        mean, groups = sizes[column], sizes.get(f"{part}_groups", np.nan)
        text = units.NONE if np.isnan(mean) else f"{mean:,.0f}"
        of_groups = "" if np.isnan(groups) else f" ({groups:,.0f} groups)"
        counts.append(Cell(text + of_groups, value=None if np.isnan(mean) else float(mean)))
    return counts
