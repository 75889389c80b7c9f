"""Data quality: for each peer and column of a table gaps, range, coded values, drift and leaks.

Drift is the standardised mean difference (Austin 2009, Statistics in Medicine 28) between a peer
and all others together: |m_i - m_rest| / sqrt((v_i + v_rest) / 2), with means m and variances v; of
a category, the largest over its values. Legend: p = peers, n = rows, c = columns, f = features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets import leaks
from coterie.datasets.leaks import PREDICTS, Bools
from coterie.datasets.preprocessing import Column, Floats, by_column
from coterie.datasets.problem import Problem

FILE = "quality.csv"
"""Table of a simulation."""
CODES = (0.0, -1.0, -9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
"""Numbers that are often written for "not measured"."""
MIN_CODED_SHARE, MIN_CODED_ROWS = 0.01, 2
"""Minimum frequency of a coded value."""
MIN_DISTINCT = 5
"""Minimum number of other values that a coded value is compared with: not those of a score."""
FENCE = 3.0
"""Distance of an isolated value from the quartiles, in interquartile ranges (Tukey)."""
MAX_MISSING = 0.5
"""Share of missing values above which a column is reported."""
MAX_DRIFT = 1.0
"""Standardised mean difference above which a column is reported."""
_JUDGED = 100_000
_SHOWN, _NAMED = 8, 3
_MEASURED_DIFFERENTLY = (
    "other patients, or other devices, units or codes? For the latter set table.scale = "
    '"own"; coterie sweep PRESET table.scale=own,common compares both'
)


@dataclass(frozen=True)
class ColumnQuality:
    """Quality of one column at one peer; NaN where a number does not exist."""

    peer: int
    column: str
    kind: str  # as in `coterie.datasets.preprocessing.Column`, or "rows"
    rows: int
    missing: float  # share of the rows without a value
    distinct: int  # different values
    low: float = np.nan  # this to `std`: of a number, or a date in days since 1970
    median: float = np.nan
    high: float = np.nan
    mean: float = np.nan
    std: float = np.nan
    code: float = np.nan  # value that may mean "not measured"
    code_share: float = np.nan  # share of the rows with it
    drift: float = np.nan  # standardised mean difference from all other peers here
    alone: float = np.nan  # separation of the classes by this column, see `leaks`
    leak: str = ""  # sign of a leak with its remedy, in words

    @property
    def finding(self) -> str:
        """Most severe problem of the column, in words; empty without problems."""
        return self._problem[1]

    @property
    def severity(self) -> int:
        """Kind of the finding: 6 if the column alone predicts the label, down to 0 for none."""
        return self._problem[0]

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key: most severe problem first."""
        share, drift = np.nan_to_num([self.code_share, self.drift]).tolist()
        return -self.severity, -share, -self.missing, -drift

    @property
    def _problem(self) -> tuple[int, str]:
        name, code = self.column, f"{self.code:g}"
        if self.leak:
            return (6 if self.alone >= PREDICTS else 5), self.leak
        if not np.isnan(self.code):
            share = _percent(self.code_share)
            return 4, f"{name} is {code} in {share} of the rows; {code} may mean 'not measured'"
        if self.missing >= MAX_MISSING:
            return 3, f"{name} is missing in {_percent(self.missing)} of the rows"
        if self.distinct == 1 and self.rows > 1:
            return 2, f"{name} has the same value in all rows"
        if self.drift > MAX_DRIFT:
            drift = f"{self.drift:.1f} standard deviations"
            return 1, f"{name} differs from the other peers by {drift}"
        return 0, ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def survey(
    problem: Problem, peers: Sequence[int] | None = None, *, for_leaks: bool = True
) -> list[ColumnQuality]:
    """Return the quality of each peer's columns; empty if the data have no named columns."""
    # A deployed node has only its own peer's rows, which are then compared with no other.
    qualities = _survey(problem, for_leaks)
    return [each for each in qualities if peers is None or each.peer in peers]


@lru_cache(maxsize=4)  # relay and node of a simulation share a problem
def _survey(problem: Problem, for_leaks: bool) -> Sequence[ColumnQuality]:
    table, files = problem.table, {}
    if table is None:
        return ()
    parts = problem.train, problem.validation, problem.test
    group_n = problem.groups
    counts = np.bincount(np.concatenate([rows for part in parts for rows in part.rows]))
    for peer in range(problem.peers):
        rows = np.concatenate([part.rows[peer] for part in parts])
        in_file, untested = np.argsort(rows), len(rows) - len(problem.test.rows[peer])
        targets = np.concatenate([part.targets[peer] for part in parts])[in_file]
        files[peer] = leaks.File(
            table.cells[rows[in_file]],
            leaks.classes_of(targets[:, 1:] if problem.task == "survival" else targets),
            in_file >= untested,
            untested if any(problem.own_test[peer : peer + 1]) else len(rows),
            bool((counts[rows] == 1).all()),
            None if group_n is None else group_n[rows[in_file]],
        )
    if for_leaks:
        return survey_files(files, table.columns)
    return survey_tables({peer: file.cells for peer, file in files.items()}, table.columns)


def of_labels(problem: Problem) -> str:
    """Return the finding of the labels; empty without one."""
    if problem.task != "regression":  # FEMNIST has the letters A and a
        is_own, classes = bool(problem.preprocessing), problem.classes
        return leaks.alike("classes", [name for name in classes if is_own or len(name) > 1])
    parts = problem.train, problem.validation, problem.test
    return _numbers("labels", *(each.ravel() for part in parts for each in part.targets))


def _numbers(name: str, *values_p: Floats) -> str:
    """Return the finding of numbers to predict that may be meant as classes; empty for others."""
    known = np.unique(np.concatenate(values_p))
    known = known[~np.isnan(known)]
    if len(known) < 2 or (len(known) > 2 and not np.array_equal(known, np.arange(len(known)))):
        return ""
    what = f"{known[0]:g} to {known[-1]:g} are regression targets"
    return f"{name}: {what}; if they are classes, set table.classes (arrays: make y int)"


def survey_files(
    files: Mapping[int, leaks.File], columns: Sequence[Column], label: str | None = None
) -> list[ColumnQuality]:
    """Return the quality of peers' columns with signs of leaks, and a line for rows with one."""
    # `label` is a column that is no feature.
    features = [c for c, column in enumerate(columns) if column.name != label]
    qualities = survey_tables({peer: file.cells for peer, file in files.items()}, columns)
    of_label = {}
    for c in {*range(len(columns))}.difference(features):
        name, categories = columns[c].name, columns[c].categories
        values = np.concatenate([file.cells[:, c] for file in files.values()])
        of_label[name] = leaks.alike(name, categories) if categories else _numbers(name, values)
    if len(features) < len(columns):
        files = {p: replace(file, cells=file.cells[:, features]) for p, file in files.items()}
    signs = leaks.signs(files, [columns[c] for c in features])
    signs |= {(peer, name): (np.nan, text) for peer in files for name, text in of_label.items()}
    for k, each in enumerate(qualities):
        alone, leak = signs.pop((each.peer, each.column), (np.nan, ""))
        qualities[k] = replace(each, alone=alone, leak=leak)
    for (peer, name), (_, leak) in signs.items():
        cells = files[peer].cells
        numbers = float(np.isnan(cells).any(axis=1).mean()), len(np.unique(leaks.hashes(cells)))
        qualities.append(ColumnQuality(peer, name, "rows", len(cells), *numbers, leak=leak))
    return qualities


@np.errstate(over="ignore", invalid="ignore")
def survey_tables(cells_p: Mapping[int, Floats], columns: Sequence[Column]) -> list[ColumnQuality]:
    """Return the quality of the columns of tables with cells (n, columns), see `RawTable`."""
    cells_p = {peer: cells for peer, cells in cells_p.items() if len(cells)}
    if not cells_p:
        return []
    coded: dict[int, dict[float, Bools]] = {peer: {} for peer in cells_p}
    for code in CODES:
        frequent = {peer: _frequent(cells, code) for peer, cells in cells_p.items()}
        wanted = np.any([*frequent.values()], axis=0)
        isolated = _isolated(cells_p.values(), code, columns, wanted)
        for peer, is_frequent in frequent.items():
            coded[peer][code] = isolated & is_frequent
    drifts, result = _drifts(cells_p, columns), []
    for peer, cells in cells_p.items():
        result += _described(peer, cells, columns, coded[peer], drifts[peer])
    return result


def shortened(qualities: Sequence[ColumnQuality], most: int) -> Sequence[ColumnQuality]:
    """Return all columns, or of more than `most` those with a finding, most severe first."""
    if len(qualities) <= most:
        return qualities
    bad = (each for each in qualities if each.finding)
    return sorted(bad, key=lambda each: each.rank)[:most]


def remedy(qualities: Sequence[ColumnQuality], source: str) -> str:
    """Return how values that mean "not measured" become missing, or else what drift may mean."""
    # `source` is the name of the data set, or "schema" where schema.toml says it.
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


def grouped(
    qualities: Iterable[ColumnQuality], names: Sequence[str]
) -> list[tuple[str, ColumnQuality]]:
    """Return the findings, most severe first, each with the names of its peers."""
    # A sign of a leak in the same column of several peers is one finding. `names` may be empty.
    groups: dict[object, list[ColumnQuality]] = {}
    for each in sorted((each for each in qualities if each.finding), key=lambda each: each.rank):
        key = each.column, each.severity, None if each.leak else each.peer
        groups.setdefault(key, []).append(each)
    result = []
    for group in groups.values():
        peers = [names[p] if names else f"peer {p}" for p in sorted(each.peer for each in group)]
        if len(peers) > _NAMED:
            peers[_NAMED - 1 :] = [f"{len(peers) - _NAMED + 1} others"]
        result.append((", ".join(peers), group[0]))
    return result


def warnings(
    qualities: Sequence[ColumnQuality], names: Sequence[str], source: str, file: str = FILE
) -> list[str]:
    """Return a line for each sign of a leak, up to eight, and up to two about other problems."""
    # `names` may be empty; `source` is as in `remedy`; `file` has all problems.
    groups = grouped(qualities, names)
    leaky, others = ([each for each in groups if bool(each[1].leak) is k] for k in (True, False))
    lines = [f"{peers}: {each.leak}" for peers, each in leaky[:_SHOWN]]
    for peers, each in others[:1]:
        parts = each.finding, remedy([each], source)
        lines.append(f"{peers}: {'; '.join(filter(None, parts))}")
    if rest := leaky[_SHOWN:] + others[1:]:
        columns = list(dict.fromkeys(each.column for _, each in rest))
        some = ", ".join(columns[:5]) + (", ..." if len(columns) > 5 else "")
        lines.append(f"{len(rest)} more in {file}: {some}")
    return lines


def _described(
    peer: int,
    cells: Floats,
    columns: Sequence[Column],
    coded: Mapping[float, Bools],
    drift_c: Floats,
) -> list[ColumnQuality]:
    missing_c = 1 - (~np.isnan(cells)).sum(axis=0) / len(cells)
    statistics = np.nanmin, np.nanmedian, np.nanmax, np.nanmean, np.nanstd
    numbers_c = np.stack([by_column(each, cells) for each in statistics], axis=1)
    result = []
    for c, column in enumerate(columns):
        is_ordered = column.kind != "category"
        low, median, high, mean, std = numbers_c[c].tolist() if is_ordered else [np.nan] * 5
        code = next((code for code, is_coded in coded.items() if is_coded[c]), np.nan)
        result.append(
            ColumnQuality(
                peer,
                column.name,
                column.kind,
                len(cells),
                float(missing_c[c]),
                len(np.unique(cells[~np.isnan(cells[:, c]), c])),
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
    """Return for each wanted column whether a value lies far from all others, (c,)."""
    # Large tables are judged by evenly spaced rows.
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
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / below, dtype=np.float64)
