"""Results by peer: final result of each peer under each method, as a table and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.app.experiments.measures import gains
from coterie.app.experiments.table import Table
from coterie.app.runs import cells, judged, units
from coterie.app.runs.rundir import PARTS, Floats, Run

FILE = "comparison-peers.csv"
SHOWN = 100
"""Number of peers that the page lists; the file has all."""


class PeerCell(NamedTuple):
    """A peer's result under a method for people, its gain over Local, and whether Local is better.

    `value` is the number that the table sorts by; None without a result.
    """

    text: str
    gain: str
    value: float | None
    is_harmed: bool


class PeerRow(NamedTuple):
    """A peer: its name, its numbers of examples, and a cell for each method.

    `samples` are the training examples that weight the peer. Numbers of groups stand behind those
    of examples.
    """

    name: str
    samples: str
    validation: str
    test: str
    cells: list[PeerCell]


class PeerTable(NamedTuple):
    """The first `SHOWN` peers of a comparison; `total` counts all."""

    methods: list[str]
    is_accuracy: bool
    rows: list[PeerRow]
    total: int


def table(compared: Table) -> PeerTable | None:
    """Return the results by peer, means over the seeds; None without measurements in common.

    A peer is identified by its name: where the split of each seed has other institutions, a row
    has the seeds that have the peer.
    """
    rows = compared.rows
    runs = [run for row in rows for run in row.runs if len(run.rounds)]
    if not runs or not compared.has_same_data:
        return None
    is_accuracy = all(run.has_accuracy for run in runs)
    results: dict[str, dict[str, list[tuple[float, float]]]] = {}
    sizes: dict[str, list[tuple[float, ...]]] = {}
    unjudged: dict[str, str] = {}
    for row in rows:
        for run, local in zip(row.runs, row.local, strict=True):
            if not len(run.rounds):
                continue
            value_n = run.last("test_accuracy" if is_accuracy else "test_loss")
            gain_n = np.full(run.peers, np.nan)
            if local is not None and not row.is_local:
                gain_n = gains(run, local)
            unjudged |= {run.names[peer]: why for peer, why in judged.unjudged(run).items()}
            for name, value, gain, *of_parts in zip(
                run.names, value_n, gain_n, *_sizes(run), strict=True
            ):
                of_peer = results.setdefault(name, {})
                of_peer.setdefault(row.method, []).append((float(value), float(gain)))
                sizes.setdefault(name, []).append(tuple(map(float, of_parts)))
    methods = [row.method for row in rows]
    made = [
        PeerRow(
            name,
            *_counts(sizes[name]),
            [
                PeerCell(unjudged[name], "", None, False)
                if name in unjudged
                else _cell(of_peer.get(method, []), is_accuracy)
                for method in methods
            ],
        )
        for name, of_peer in list(results.items())[:SHOWN]
    ]
    return PeerTable(methods, is_accuracy, made, len(results))


def _sizes(run: Run) -> list[Floats]:
    """Return the peers' numbers of training, validation and test examples, (n,) each.

    The numbers of their groups, if they have groups, follow.
    """
    unknown = np.full(run.peers, np.nan)
    known = [run.samples, run.sizes("validation"), run.sizes("test")]
    if run.is_grouped:
        known += [run.sizes(part, in_groups=True) for part in PARTS]
    return [unknown if sizes_n is None else sizes_n for sizes_n in known]


def _cell(results: Sequence[tuple[float, float]], is_accuracy: bool) -> PeerCell:
    """Return the cell of a peer's results and gains, one pair per seed."""
    value, gain = (_mean([pair[k] for pair in results]) for k in (0, 1))
    if value is None:
        return PeerCell(units.NONE, "", None, False)

    def show(number: float) -> str:
        return f"{100 * number:.1f}" if is_accuracy else f"{number:.3g}"

    if gain is None:
        return PeerCell(show(value), "", value, False)
    change = show(gain)
    if float(change) == 0:  # also "-0.0", which remains after rounding
        return PeerCell(show(value), show(0.0), value, False)
    return PeerCell(show(value), change if gain < 0 else f"+{change}", value, gain < 0)


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the numbers; infinite if one is, None without numbers."""
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else None


def _counts(sizes: Sequence[tuple[float, ...]]) -> tuple[str, str, str]:
    """Write the mean over seeds of the number of training, validation and test examples."""
    train, validation, test, *groups = (
        units.NONE if (mean := _mean(of_part)) is None else f"{mean:,.0f}"
        for of_part in zip(*sizes, strict=True)
    )
    if groups:
        counts = zip((train, validation, test), groups, strict=True)
        train, validation, test = (f"{rows} ({count} groups)" for rows, count in counts)
    return train, validation, test


def as_csv(compared: Table) -> str:
    """Write a line per method, seed and peer in full precision; undefined numbers are empty."""
    lines: list[list[object]] = [
        [
            "method",
            "seed",
            "peer",
            "peer_name",
            "samples",
            "test_accuracy",
            "test_loss",
            "gain",
            "validation",
            "test",
        ]
    ]
    if any(run.is_grouped for row in compared.rows for run in row.runs):
        lines[0] += [f"{part}_groups" for part in PARTS]
    for row in compared.rows:
        for run, local in zip(row.runs, row.local, strict=True):
            if not len(run.rounds):
                continue
            samples_n, *held_out = _sizes(run)
            columns = [
                samples_n,
                run.last(),
                run.last("test_loss"),
                np.full(run.peers, np.nan) if local is None else gains(run, local),
                *held_out,
            ]
            for peer, numbers in enumerate(zip(*columns, strict=True)):
                values = ["" if np.isnan(number) else repr(float(number)) for number in numbers]
                name = cells.safe(run.names[peer])
                lines.append([row.method, run.config.get("seed"), peer, name, *values])
    return cells.as_csv(lines)
