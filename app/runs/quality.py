"""Table of the data quality: a line for each peer and column of its data.

It is quality.csv in a simulation, and quality-0003.csv on the deployed node of peer 3, where it
stays: a page of the relay does not read it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

from coterie.app.runs import atomic, cells, files
from coterie.app.runs.files import ResultsError
from coterie.datasets.preprocessing import Kind
from coterie.datasets.quality import FILE, ColumnQuality, shortened

MAX_LINES = 100_000
"""Number of lines above which a table has only columns with findings."""
_FIELDS = [field.name for field in fields(ColumnQuality) if field.name != "leak"]
_HEAD = [*_FIELDS[:1], "peer_name", *_FIELDS[1:], "finding"]
_TEXTS = ("column", "kind")
_COUNTS = ("peer", "rows", "distinct")


def write(
    directory: Path,
    qualities: Sequence[ColumnQuality],
    names: Sequence[str] = (),
    file: str = FILE,
) -> None:
    """Write the table into the run directory of the machine that holds the data.

    Nothing is written without `qualities`. `names` are those of the peers; empty if there are none.
    """
    if qualities:
        atomic.write(directory / file, as_csv(qualities, names))


def file_of(peer: int) -> str:
    """Return the name of the table of a deployed node."""
    return f"quality-{peer:04d}.csv"


def as_csv(qualities: Sequence[ColumnQuality], names: Sequence[str]) -> str:
    """Write the lines in full precision; numbers that do not exist are empty."""
    lines: list[list[object]] = [[*_HEAD]]
    for each in shortened(qualities, MAX_LINES):
        name = names[each.peer] if names else f"peer {each.peer}"
        line = [each.peer, name, *(getattr(each, field) for field in _FIELDS[1:]), each.finding]
        lines.append(
            [
                "" if isinstance(cell, float) and math.isnan(cell) else cells.safe(cell)
                for cell in line
            ]
        )
    return cells.as_csv(lines)


def read(directory: Path, peers: int) -> list[ColumnQuality]:
    """Read the table of a run directory; empty without one. ResultsError: the file is damaged."""
    text = files.text(directory, FILE)
    if text is None:
        return []
    try:
        lines = csv.DictReader(io.StringIO(text), strict=True)
        qualities = [_parsed(line) for line in lines]
    except (csv.Error, ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"{directory / FILE}: not a table of data quality: {error}") from None
    if not all(0 <= each.peer < peers for each in qualities):
        raise ResultsError(f"{directory / FILE}: not a table of {peers} peers")
    return qualities


def _parsed(line: dict[str, str]) -> ColumnQuality:
    if None in line.values():
        raise ValueError("a line is incomplete")
    values: dict[str, str | int | float] = {}
    for name in _FIELDS if "alone" in line else _FIELDS[:-1]:  # written before version 0.2
        if name in _TEXTS:
            values[name] = line[name].removeprefix("'")
        elif name in _COUNTS:
            values[name] = int(line[name])
        else:
            values[name] = _number(line[name])
    if values["kind"] not in (*get_args(Kind), "rows"):
        raise ValueError(f"kind {line['kind']!r}")
    quality = ColumnQuality(**values)  # type: ignore[arg-type]
    finding = line["finding"].removeprefix("'")
    return quality if finding == quality.finding else replace(quality, leak=finding)


def _number(text: str) -> float:
    """Parse a number, which may be infinite; NaN for an empty cell only, else ValueError."""
    value = float(text) if text else math.nan
    if text and math.isnan(value):
        raise ValueError("a number is NaN")
    return value
