"""Data quality: for each peer and column of a table the gaps, the range, coded values and drift.

Drift is the standardised mean difference (Austin 2009, Statistics in Medicine 28) between a peer
and all other peers together: |m_i - m_rest| / sqrt((v_i + v_rest) / 2), with means m and variances
v; of a category, the largest one over its values. Everything is computed from the cells before
preprocessing, of all rows of a peer. Legend: p = peers, n = rows, c = columns, f = features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.preprocessing import Column, Floats
from coterie.datasets.problem import Problem

Bools = npt.NDArray[np.bool_]

FILE = "quality.csv"
"""Table of a simulation."""
CODES = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
"""Numbers that are often written for "not measured"."""
MIN_CODED_SHARE, MIN_CODED_ROWS = 0.01, 2
"""Minimum frequency of a coded value."""
MIN_DISTINCT = 5
"""Minimum number of other values that a coded value is compared with: not those of a score."""
FENCE = 3.0
"""Distance from the quartiles, in interquartile ranges, of an isolated value (Tukey's outer
fence)."""
MAX_MISSING = 0.5
"""Share of missing values above which a column is reported."""
MAX_DRIFT = 1.0
"""Standardised mean difference above which a column is reported."""
_JUDGED = 100_000
_MEASURED_DIFFERENTLY = (
    "other patients, or other devices, units or codes? For the latter set table.scale = "
    '"own"; coterie sweep PRESET table.scale=own,common compares both'
)


@dataclass(frozen=True)
class ColumnQuality:
    """Quality of one column at one peer; NaN where a number does not exist."""

    peer: int
    column: str
    kind: str  # as in `coterie.datasets.preprocessing.Column`
    rows: int
    missing: float  # share of the rows without a value
    distinct: int  # different values
    low: float  # this to `std`: of a number or a date, in days since 1970; NaN for a category
    median: float
    high: float
    mean: float
    std: float
    code: float  # value that may mean "not measured"
    code_share: float  # share of the rows with it
    drift: float  # standardised mean difference from all other peers; NaN if there are none here

    @property
    def finding(self) -> str:
        """Most severe problem of the column, in words; empty without problems."""
        match self._severity:
            case 4:
                return (
                    f"{self.column} is {self.code:g} in {_percent(self.code_share)} of the rows; "
                    f"{self.code:g} may mean 'not measured'"
                )
            case 3:
                return f"{self.column} is missing in {_percent(self.missing)} of the rows"
            case 2:
                return f"{self.column} has the same value in all rows"
            case 1:
                return (
                    f"{self.column} differs from the other peers by {self.drift:.1f} standard "
                    "deviations"
                )
        return ""

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key: most severe problem first."""
        drift = 0.0 if np.isnan(self.drift) else self.drift
        share = 0.0 if np.isnan(self.code_share) else self.code_share
        return -self._severity, -share, -self.missing, -drift

    @property
    def _severity(self) -> int:
        if not np.isnan(self.code):
            return 4
        if self.missing >= MAX_MISSING:
            return 3
        if self.distinct == 1 and self.rows > 1:
            return 2
        return int(self.drift > MAX_DRIFT)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def survey(problem: Problem, peers: Sequence[int] | None = None) -> list[ColumnQuality]:
    """Return the quality of each peer's columns; empty if the data are no table with named columns.

    The problem has the rows of the peers that are compared: on a deployed node only those of the
    node's peer, whose columns are then compared with no other. `peers` are those of the result;
    None for all with rows here.
    """
    return [each for each in _survey(problem) if peers is None or each.peer in peers]


@lru_cache(maxsize=2)  # relay and node of a simulation share a problem
def _survey(problem: Problem) -> Sequence[ColumnQuality]:
    table = problem.table
    if table is None:
        return ()
    parts = problem.train, problem.validation, problem.test
    rows_p = [np.concatenate([part.rows[p] for part in parts]) for p in range(problem.peers)]
    cells_p = {peer: table.cells[rows] for peer, rows in enumerate(rows_p)}
    return survey_tables(cells_p, table.columns)


@np.errstate(over="ignore", invalid="ignore")
def survey_tables(cells_p: Mapping[int, Floats], columns: Sequence[Column]) -> list[ColumnQuality]:
    """Return the quality of the columns of tables.

    `cells_p` has the cells (n, columns) of each peer's table, as in
    `coterie.datasets.preprocessing.RawTable`.
    """
    cells_p = {peer: cells for peer, cells in cells_p.items() if len(cells)}
    if not cells_p:
        return []
    frequent = {
        code: {peer: _frequent(cells, code) for peer, cells in cells_p.items()} for code in CODES
    }
    drifts = _drifts(cells_p, columns)
    result = []
    isolated = {
        code: _isolated(cells_p.values(), code, columns, np.any([*of_peers.values()], axis=0))
        for code, of_peers in frequent.items()
    }
    for peer, cells in cells_p.items():
        coded = {code: isolated[code] & frequent[code][peer] for code in CODES}
        result += _described(peer, cells, columns, coded, drifts[peer])
    return result


def shortened(qualities: Sequence[ColumnQuality], most: int) -> Sequence[ColumnQuality]:
    """Return all columns, or of more than `most` those with a finding, most severe first."""
    if len(qualities) <= most:
        return qualities
    bad = (each for each in qualities if each.finding)
    return sorted(bad, key=lambda each: each.rank)[:most]


def remedy(qualities: Sequence[ColumnQuality], source: str) -> str:
    """Return how values that mean "not measured" become missing, or else what drift may mean.

    `source` is the name of the data set, or "schema" where schema.toml says it (`coterie schema`, a
    deployed node).
    """
    code_of = {each.column: each.code for each in qualities if not np.isnan(each.code)}
    if not code_of:
        drifts = source == "table" and any(each.drift > MAX_DRIFT for each in qualities)
        return _MEASURED_DIFFERENTLY if drifts else ""
    match source:
        case "table":
            marks = ", ".join(f"{column}={code:g}" for column, code in code_of.items())
            return (
                f'to count it as missing, add "{marks}" to table.na-values, with table.missing = '
                '"mean"'
            )
        case "schema":
            column, code = next(iter(code_of.items()))
            return (
                f'to count it as missing, add "{code:g}" to na-values of [columns.{column}] in '
                "schema.toml"
            )
        case "heart-disease":
            return (
                "to count it as missing, train on the tables of these hospitals, with "
                "table.na-values: coterie data fetch heart-disease"
            )
    return ""


def warnings(
    qualities: Sequence[ColumnQuality], names: Sequence[str], source: str, file: str = FILE
) -> list[str]:
    """Return up to two lines about the most severe problems; empty without problems.

    `names` are those of the peers, empty if there are none; `source` is as in `remedy`; `file` has
    all problems.
    """
    bad = sorted((each for each in qualities if each.finding), key=lambda each: each.rank)
    if not bad:
        return []
    first = bad[0]
    name = names[first.peer] if names else f"peer {first.peer}"
    lines = [f"{name}: {'; '.join(filter(None, (first.finding, remedy([first], source))))}"]
    if more := len(bad) - 1:
        columns = list(dict.fromkeys(each.column for each in bad[1:]))
        some = ", ".join(columns[:5]) + (", ..." if len(columns) > 5 else "")
        lines.append(f"{more} more in {file}: {some}")
    return lines


def _described(
    peer: int,
    cells: Floats,
    columns: Sequence[Column],
    coded: Mapping[float, Bools],
    drift_c: Floats,
) -> list[ColumnQuality]:
    known = ~np.isnan(cells)
    count_c, each_c = known.sum(axis=0), np.arange(len(columns))
    ordered = np.sort(cells, axis=0)  # NaN last
    last_c = np.maximum(count_c - 1, 0)
    median_c = (ordered[last_c // 2, each_c] + ordered[(last_c + 1) // 2, each_c]) / 2
    distinct_c = (np.diff(ordered, axis=0) > 0).sum(axis=0) + (count_c > 0)
    mean_c = _ratio(np.where(known, cells, 0.0).sum(axis=0), count_c)
    squares_c = np.square(np.where(known, cells - mean_c, 0.0)).sum(axis=0)
    std_c = np.sqrt(_ratio(squares_c, count_c))
    result = []
    for c, column in enumerate(columns):
        is_ordered = column.kind != "category"
        numeric = ordered[0, c], median_c[c], ordered[last_c[c], c], mean_c[c], std_c[c]
        low, median, high, mean, std = map(float, numeric) if is_ordered else (np.nan,) * 5
        code = next((code for code, is_coded in coded.items() if is_coded[c]), np.nan)
        result.append(
            ColumnQuality(
                peer,
                column.name,
                column.kind,
                len(cells),
                float(1 - count_c[c] / len(cells)),
                int(distinct_c[c]),
                *(low, median, high, mean, std),
                code,
                np.nan if np.isnan(code) else float((cells[:, c] == code).mean()),
                float(drift_c[c]),
            )
        )
    return result


def _isolated(
    cells_p: Collection[Floats], code: float, columns: Sequence[Column], wanted: Bools
) -> Bools:
    """Return for each wanted column whether a value lies far from all others, (c,).

    Large tables are judged by evenly spaced rows.
    """
    result = np.zeros(len(columns), dtype=np.bool_)
    step = max(1, sum(map(len, cells_p)) // _JUDGED)
    for c in np.flatnonzero(wanted).tolist():
        values = np.concatenate([cells[::step, c] for cells in cells_p])
        others = values[~np.isnan(values) & (values != code)]
        if columns[c].kind == "number" and len(np.unique(others)) >= MIN_DISTINCT:
            lower, upper = np.quantile(others, [0.25, 0.75])
            reach = FENCE * (upper - lower)
            result[c] = not lower - reach <= code <= upper + reach
    return result


def _frequent(cells: Floats, code: float) -> Bools:
    """Return for each column whether a value is frequent at a peer, (c,)."""
    count_c = (cells == code).sum(axis=0)
    min_rows = max(MIN_CODED_ROWS, MIN_CODED_SHARE * len(cells))
    return np.asarray(count_c >= min_rows, dtype=np.bool_)


def _drifts(cells_p: Mapping[int, Floats], columns: Sequence[Column]) -> dict[int, Floats]:
    """Return each peer's standardised mean differences from the others, (c,)."""
    smallest_c = np.fmin.reduce([np.fmin.reduce(cells, axis=0) for cells in cells_p.values()])
    # Sums of small numbers are exact enough, and zero for a constant column.
    sums = {
        peer: _sums(_features(cells - smallest_c, cells, columns))
        for peer, cells in cells_p.items()
    }
    total = np.sum([*sums.values()], axis=0)
    source = np.repeat(np.arange(len(columns)), [len(c.categories) or 1 for c in columns])
    result = {}
    for peer, own in sums.items():
        (mean, variance), (rest, spread) = _mean_variance(own), _mean_variance(total - own)
        difference_f = _ratio(np.abs(mean - rest), np.sqrt((variance + spread) / 2))
        difference_f[mean == rest] = 0.0
        result[peer] = np.array(
            [np.fmax.reduce(difference_f[source == c]) for c in range(len(columns))]
        )
    return result


def _features(shifted: Floats, cells: Floats, columns: Sequence[Column]) -> Floats:
    """Return shifted numbers and an indicator for each category, (n, features)."""
    values = []
    for c, column in enumerate(columns):
        if column.categories:
            is_category = cells[:, [c]] == np.arange(len(column.categories))
            values.append(np.where(np.isnan(cells[:, [c]]), np.nan, is_category))
        else:
            values.append(shifted[:, [c]])
    return np.concatenate(values, axis=1)


def _sums(values: Floats) -> Floats:
    """Return number, sum and sum of squares of the values that are not missing, (3, features)."""
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    return np.stack([known.sum(axis=0), filled.sum(axis=0), np.square(filled).sum(axis=0)])


def _mean_variance(sums: Floats) -> tuple[Floats, Floats]:
    count, total, squares = sums
    mean = _ratio(total, count)
    return mean, np.maximum(_ratio(squares, count) - mean**2, 0)


def _ratio(above: Floats, below: npt.NDArray[Any]) -> Floats:
    """Divide; NaN for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / below, dtype=np.float64)
