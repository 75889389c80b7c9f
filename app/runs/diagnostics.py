"""Diagnostic accuracy, or C-index, of a run's peers, from the model cards on this machine.

In a deployment the cards stay on the nodes, so the relay has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.app.runs import atomic, cells, files
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.clients.diagnostics import DECISIONS, HALF, MEASURES, Estimate

FILE = "diagnostics.csv"
MAX_PEERS = 1024
"""Number of peers whose cards are read."""
HEAD = (
    "peer", "peer_name", "examples", "positives", "threshold", "measure", "value", "low", "high",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostic accuracy of one peer's model, see `coterie.clients.diagnostics.diagnose`."""

    examples: int
    positives: int
    measures: Mapping[str, Estimate]
    threshold: float | None
    at_threshold: Mapping[str, Estimate]
    temperature: float | None
    recalibrated: Mapping[str, Estimate]


def read(run: Run) -> dict[int, Diagnostics]:
    """Return the diagnostics of the first honest peers; ResultsError if a card is damaged.

    Empty without models of two classes or of survival.
    """
    result: dict[int, Diagnostics] = {}
    if all(np.isnan(run.metric(name)).all() for name in ("sensitivity", "c_index")):
        return result
    for peer in np.flatnonzero(~run.attackers)[:MAX_PEERS].tolist():
        name = f"models/peer-{peer:04d}.json"
        content = (files.json_of(run.directory, name, dict) or {}).get("diagnostics")
        if content is not None:
            try:
                result[peer] = _parsed(content)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ResultsError(f"{run.directory / name}: no diagnostics: {error}") from None
    return result


def write(run: Run) -> None:
    """Write diagnostics.csv: a line per peer, threshold and measure; nothing without diagnostics.

    The threshold is empty for measures that need none.
    """
    lines = [*rows(run)]
    if lines:
        atomic.write(run.directory / FILE, cells.as_csv([HEAD, *lines]))


def rows(run: Run) -> Iterator[list[object]]:
    """Yield the lines of the CSV, with `HEAD` as columns."""
    for peer, of_peer in run.diagnostics.items():
        first = [peer, cells.safe(run.names[peer]), of_peer.examples, of_peer.positives]
        for name, estimate in of_peer.measures.items():
            threshold = HALF if name in DECISIONS else ""
            yield [*first, threshold, name, *map(_cell, estimate)]
        for name, estimate in of_peer.at_threshold.items():
            yield [*first, of_peer.threshold, name, *map(_cell, estimate)]
        for name, estimate in of_peer.recalibrated.items():
            yield [*first, "", f"recalibrated_{name}", *map(_cell, estimate)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _parsed(content: Mapping[str, Any]) -> Diagnostics:
    examples, positives = content["examples"], content["positives"]
    if not all(type(number) is int and 0 <= number < 2**53 for number in (examples, positives)):
        raise ValueError("examples and positives must be counts")
    threshold, temperature = (_number(content[name]) for name in ("threshold", "temperature"))
    return Diagnostics(
        examples,
        positives,
        _estimates(content["measures"]),
        None if math.isnan(threshold) else threshold,
        _estimates(content["at_threshold"]),
        None if math.isnan(temperature) else temperature,
        _estimates(content["recalibrated"]),
    )


def _estimates(content: Mapping[str, Any]) -> dict[str, Estimate]:
    result = {}
    for name, values in content.items():
        if name not in MEASURES or not isinstance(values, list) or len(values) != 3:
            raise ValueError("expected a value and its interval for each measure")
        value, low, high = map(_number, values)
        result[name] = value, low, high
    return result


def _number(value: object) -> float:
    """Return a finite number; NaN for null."""
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("expected numbers")
    return float(value)
