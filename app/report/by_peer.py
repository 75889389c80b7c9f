"""Results by peer: final result of each peer under each method, as a table and as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.app.experiments.measures import gains
from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Section
from coterie.app.runs import cells, judged, units
from coterie.app.runs.rundir import PARTS, Run

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "comparison-peers.csv"
SHOWN = 100
"""Number of peers that the page lists; the file has all."""


class PeerCell(NamedTuple):
    """A peer's result under a method for people, its gain over Local, and whether Local is better.

    `value` is the number that the table sorts by; None without a result.
    """

    text: str
    gain: str = ""
    value: float | None = None
    is_harmed: bool = False


@dataclass(frozen=True)
class ByPeer(Section):
    """Results by peer; a row has numbers of training, validation and test examples, and cells."""

    frame: DataFrame  # a row per method, seed and peer
    methods: list[str]
    is_accuracy: bool
    rows: Mapping[str, tuple[list[str], list[PeerCell]]]  # by name; empty if data differ
    total: int

    @property
    def template(self) -> str:  # type: ignore[override]
        return "by_peer.html.j2" if self.rows else ""

    @classmethod
    def of(cls, compared: Comparison) -> ByPeer | None:
        """Return the results by peer, means over the seeds; None without measurements.

        A peer is identified by its name: where the split of each seed has other institutions, a
        row has the seeds that have the peer.
        """
        import pandas as pd

        table = compared.table
        runs = [
            (row.method, run, local)
            for row in table.rows
            for run, local in zip(row.runs, row.local, strict=True)
            if len(run.rounds)
        ]
        if not runs:
            return None
        frame = pd.concat([_of(*each) for each in runs])
        methods = [row.method for row in table.rows]
        is_accuracy = all(run.has_accuracy for _, run, _ in runs)
        if not table.has_same_data:
            return cls(frame, methods, is_accuracy, {}, 0)
        too_few = {
            run.names[peer]: why for _, run, _ in runs for peer, why in judged.unjudged(run).items()
        }
        value = "test_accuracy" if is_accuracy else "test_loss"
        mean = frame.groupby(["peer_name", "method"])[[value, "gain"]].mean()
        local = {row.method for row in table.rows if row.is_local}
        sizes = frame.groupby("peer_name", sort=False)[list(frame.columns[4:])].mean()
        results = mean.assign(gain=mean["gain"].mask(mean.index.isin(local, level="method")))
        rows = {
            name: (
                _counts(sizes.loc[name]),
                [
                    PeerCell(too_few[name])
                    if name in too_few
                    else _cell(*results.reindex([(name, method)]).iloc[0], is_accuracy)
                    for method in methods
                ],
            )
            for name in sizes.index[:SHOWN]
        }
        return cls(frame, methods, is_accuracy, rows, len(sizes))

    def files(self) -> dict[str, str]:
        """Return a line per method, seed and peer in full precision."""
        return {FILE: cells.csv_of(self.frame)}


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
    first = {"method": method, "seed": run.config.get("seed"), "peer": range(run.peers)}
    return pd.DataFrame({**first, "peer_name": run.names, **numbers})


def _cell(value: float, gain: float, is_accuracy: bool) -> PeerCell:
    """Return the cell of a peer's result and gain, which are NaN where unknown."""

    def show(number: float) -> str:
        return f"{100 * number:.1f}" if is_accuracy else f"{number:.3g}"

    if np.isnan(value):
        return PeerCell(units.NONE)
    if np.isnan(gain):
        return PeerCell(show(value), "", float(value))
    change = show(gain)
    if float(change) == 0:  # also "-0.0", which remains after rounding
        return PeerCell(show(value), show(0.0), float(value))
    return PeerCell(show(value), change if gain < 0 else f"+{change}", float(value), bool(gain < 0))


def _counts(sizes: Mapping[str, float]) -> list[str]:
    """Write the mean number of training, validation and test examples, and of their groups."""
    texts = []
    for part, column in zip(PARTS, ("samples", "validation", "test"), strict=True):
        mean, groups = sizes[column], sizes.get(f"{part}_groups", np.nan)
        text = units.NONE if np.isnan(mean) else f"{mean:,.0f}"
        texts.append(text if np.isnan(groups) else f"{text} ({groups:,.0f} groups)")
    return texts
