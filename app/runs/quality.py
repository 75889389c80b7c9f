"""Quality of the data: table of the columns, and peers with too few rows or a single class.

The table is quality.csv; a deployed node of peer 3 keeps its own quality-0003.csv.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.datasets.preprocessing import Kind
from coterie.datasets.quality import FILE, ColumnQuality, shortened
from coterie.datasets.table import DATASETS

if TYPE_CHECKING:
    from coterie.app.runs.rundir import Bools, Run
    from coterie.datasets.problem import Problem

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
    """Write the table, if there is one, on the machine that holds the data."""
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
                "" if isinstance(cell, float) and math.isnan(cell) else atomic.safe(cell)
                for cell in line
            ]
        )
    return atomic.as_csv(lines)


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


PARTS = ("train", "validation", "test")
"""Parts of a peer's examples in split.json."""
MIN_ROWS = 20
"""Number of rows below which a peer's result is not a number to judge by."""
RARE = 0.1
"""Share of the rarer of two classes below which the headline is AUROC instead of accuracy."""
TOO_FEW, SINGLE = f"fewer than {MIN_ROWS} {{}} {{}}", "one class only"
ONE_CLASS = "one class only ({}): accuracy is trivially 100 %"


def is_of_institutions(run: Run) -> bool:
    """Return whether the peers of a run are institutions: own data, or a table with quality.csv."""
    row = DATASETS.get(run.settings.dataset)
    return (row is not None and row.deployed is not None) or (run.directory / FILE).is_file()


def too_few_rows(run: Run, part: str = "test") -> dict[int, str]:
    """Return why peers cannot be judged: fewer than `MIN_ROWS` rows or groups, or one class."""
    sizes_n = run.sizes(part, in_groups=True)
    if sizes_n is None or not is_of_institutions(run):
        return {}
    too_few = TOO_FEW.format(part, "groups" if run.is_grouped else "rows")
    few = dict.fromkeys(np.flatnonzero(sizes_n < MIN_ROWS).tolist(), too_few)
    return few | dict.fromkeys(one_class(run), SINGLE)


def enough_rows(run: Run) -> Bools:
    """Mask of the peers with enough rows, (n,), see `too_few_rows`."""
    enough_n = np.ones(run.peers, dtype=np.bool_)
    enough_n[[*too_few_rows(run)]] = False
    return enough_n


def rare_class(run: Run) -> tuple[int, float] | None:
    """Return the rarer of two classes and its share of the test rows if below `RARE`, else None."""
    labels_nk = run.labels("test")
    if labels_nk is None or labels_nk.shape[1] != 2 or not labels_nk.sum():
        return None
    share_k = labels_nk.sum(axis=0) / labels_nk.sum()
    rarer = int(share_k.argmin())
    return (rarer, float(share_k[rarer])) if 0 < share_k[rarer] < RARE else None


def one_class(run: Run) -> dict[int, str]:
    """Return the finding about each institution whose rows all have the same class."""
    parts = [run.labels(part) for part in PARTS]
    if not is_of_institutions(run) or parts[0] is None:
        return {}
    counts = np.sum([part for part in parts if part is not None], axis=0)
    return _one_class_of(counts.tolist(), run.classes)


def one_class_in(problem: Problem) -> dict[int, str]:
    """Return the findings of `one_class` from the data, before a run."""
    if problem.task != "classification" or not (problem.table or problem.preprocessing):
        return {}
    counts_nk = [
        np.sum([row[part]["labels"] for part in PARTS], axis=0).tolist()
        for row in problem.describe()
    ]
    return _one_class_of(counts_nk, problem.classes)


def _one_class_of(counts_nk: Sequence[Sequence[int]], classes: Sequence[str]) -> dict[int, str]:
    return {
        peer: ONE_CLASS.format(classes[k] if classes else f"class {k}")
        for peer, counts_k in enumerate(counts_nk)
        for k, count in enumerate(counts_k)
        if count and len(counts_k) > 1 and count == sum(counts_k)
    }
