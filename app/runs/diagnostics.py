"""Diagnostic accuracy, or C-index, of peers whose model cards are on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval, Predicate
from pydantic import BeforeValidator

from coterie.app.runs import atomic, files
from coterie.app.runs.rundir import Run
from coterie.clients.diagnostics import DECISIONS, HALF, MEASURES

FILE = "diagnostics.csv"
MAX_PEERS = 1024
"""Number of peers whose cards are read."""
HEAD = (
    "peer", "peer_name", "examples", "positives", "threshold", "measure", "value", "low", "high",
)  # fmt: skip


def _number(value: object) -> object:
    """Return NaN for null; refuse other numbers that are not finite."""
    if value is not None and value in (math.inf, -math.inf):
        raise ValueError("must be finite")
    return math.nan if value is None else value


Count = Annotated[int, Interval(ge=0, lt=1 << 53)]
Number = Annotated[float, BeforeValidator(_number)]
Measure = Annotated[str, Predicate(MEASURES.__contains__)]
Estimates = Mapping[Measure, tuple[Number, Number, Number]]


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostic accuracy of one peer's model, see `coterie.clients.diagnostics.diagnose`."""

    examples: Count
    positives: Count
    measures: Estimates
    threshold: Number | None
    at_threshold: Estimates
    temperature: Number | None
    recalibrated: Estimates


@dataclass(frozen=True)
class Card:
    """Parts of a model card, models/peer-0000.json, that pages read."""

    diagnostics: Diagnostics | None = None
    curves: dict[str, Any] = field(default_factory=dict)  # data of figures
    dice: dict[str, Any] = field(default_factory=dict)  # class -> Dice score


def card(run: Run, peer: int) -> Card:
    """Read the model card of a peer; without one, it is empty. ResultsError: it is damaged."""
    card: Card | None = files.json_of(run.directory, f"models/peer-{peer:04d}.json", Card)
    return card or Card()


def read(run: Run) -> dict[int, Diagnostics]:
    """Return the diagnostics of the first honest peers whose model has two classes or survival."""
    if all(np.isnan(run.metric(name)).all() for name in ("sensitivity", "c_index")):
        return {}
    peers = np.flatnonzero(~run.attackers)[:MAX_PEERS].tolist()
    return {peer: each for peer in peers if (each := card(run, peer).diagnostics)}


def write(run: Run) -> None:
    """Write diagnostics.csv: a line per peer, threshold (if needed) and measure."""
    lines = [*rows(run)]
    if lines:
        atomic.write(run.directory / FILE, atomic.as_csv([HEAD, *lines]))


def rows(run: Run) -> Iterator[list[object]]:
    """Yield the lines of the CSV, with `HEAD` as columns."""
    for peer, of_peer in run.diagnostics.items():
        first = [peer, atomic.safe(run.names[peer]), of_peer.examples, of_peer.positives]
        for name, estimate in of_peer.measures.items():
            threshold = HALF if name in DECISIONS else ""
            yield [*first, threshold, name, *map(_cell, estimate)]
        for name, estimate in of_peer.at_threshold.items():
            yield [*first, of_peer.threshold, name, *map(_cell, estimate)]
        for name, estimate in of_peer.recalibrated.items():
            yield [*first, "", f"recalibrated_{name}", *map(_cell, estimate)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
