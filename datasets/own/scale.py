"""Scale of a table's numbers: one for all peers, from everybody's statistics or from schema.toml.

A peer that centres its columns on its own rows hides from a shared model how its patients differ.
Statistics are (count, mean, variance) of each column, NaN of a category. Legend: p = peers,
c = columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from coterie.datasets.preprocessing import NO_CODE, Column, Floats, Ints, by_column
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.quality import FENCE, survey


def known(problem: Problem, peer: int) -> Floats:
    """Return the cells of a peer's training rows, (n, c); NaN of a missing cell."""
    # A value that may mean "not measured" by `coterie.datasets.quality` counts as missing.
    assert problem.table is not None
    cells = problem.table.cells[problem.train.rows[peer]]
    code_c = np.array([each.code for each in survey(problem, [peer], for_leaks=False)])
    return np.where(cells == code_c, np.nan, cells)


def statistics(problem: Problem, peer: int) -> Floats:
    """Return the statistics of a peer's training rows, (3, c), without missing cells."""
    assert problem.table is not None
    columns, cells = problem.table.columns, known(problem, peer)
    moments = [np.nan_to_num(by_column(each, cells)) for each in (np.nanmean, np.nanvar)]
    result = np.stack([(~np.isnan(cells)).sum(axis=0), *moments])
    result[:, [column.kind == "category" for column in columns]] = np.nan
    return result


def publishable(values: Floats, min_values: int, groups: Ints | None = None) -> Floats:
    """Return the values without outliers, or none if they are too few."""
    # An outlier, or the only value that is not 0, would show in mean and variance: values equal to
    # the most common one, and those of a group, count once towards `min_values`.
    if not len(values):
        return values
    distinct, counts = np.unique(values, return_counts=True)
    others = values[values != distinct[counts.argmax()]]
    quartiles = [np.quantile(each, [0.25, 0.75]) for each in (values, others) if len(each)]
    low, high = np.min(quartiles), np.max(quartiles)
    reach = FENCE * (high - low)
    is_near = (low - reach <= values) & (values <= high + reach)
    values, units = values[is_near], (np.arange(len(values)) if groups is None else groups)[is_near]
    distinct, counts = np.unique(values, return_counts=True)
    differing = len(np.unique(units[values != distinct[counts.argmax()]]))
    return values if 1 + differing >= max(min_values, 2) else values[:0]


def combined(statistics_p: Sequence[Floats]) -> Floats:
    """Return mean and deviation of all rows together, (2, c); NaN of a column without values."""
    count_pc, mean_pc, variance_pc = np.nan_to_num(np.stack(statistics_p, axis=1))
    with np.errstate(invalid="ignore"):
        share_pc = count_pc / count_pc.sum(axis=0)
    mean_c = (share_pc * mean_pc).sum(axis=0)
    variance_c = (share_pc * (variance_pc + (mean_pc - mean_c) ** 2)).sum(axis=0)
    return np.stack([mean_c, np.sqrt(variance_c)])


def agreed(columns: Sequence[Column]) -> Floats:
    """Return mean and deviation of schema.toml, (2, c); NaN of a category; DataError: none."""
    lacking = [c.name for c in columns if c.kind != "category" and (c.mean is None or not c.scale)]
    if lacking:
        raise DataError(
            f"table: schema.toml has no mean and scale of {', '.join(lacking)}: add them, the same "
            'in every institution (coterie schema proposes them), or set table.scale = "own"'
        )
    return np.array([(c.mean, c.scale) for c in columns], dtype=np.float64).T


@lru_cache(maxsize=2)  # relay and node of a simulation share a problem
def on_common_scale(problem: Problem, peers: tuple[int, ...], missing: str) -> Problem:
    """Return the problem on the scale of the training rows of some peers together."""
    statistics_p = [statistics(problem, peer) for peer in peers]
    return rescaled(problem, combined(statistics_p), missing)


@lru_cache(maxsize=2)
def on_agreed_scale(problem: Problem, missing: str) -> Problem:
    """Return the problem on the scale that schema.toml has."""
    assert problem.table is not None
    return rescaled(problem, agreed(problem.table.columns), missing)


def rescaled(problem: Problem, scale_2c: Floats, missing: str) -> Problem:
    """Return the problem with the numbers of all peers on one scale: mean and deviation (2, c)."""
    # With "median", missing cells keep the peer's own median; otherwise they have the scale's mean.
    table = problem.table
    assert table is not None
    inputs, preprocessing = problem.inputs.copy(), list(problem.preprocessing)
    for peer, own in enumerate(preprocessing):
        if own is None:
            continue
        assert own.source is not None
        assert own.fill is not None
        mean, std = scale_2c[:, own.source]
        mean = np.where((own.code == NO_CODE) & ~np.isnan(mean), mean, 0.0)
        std = np.where((own.code == NO_CODE) & (std > 0), std, 1.0)
        keeps = np.array(own.code != NO_CODE)
        if missing == "median":
            train = table.cells[problem.train.rows[peer]]
            keeps |= ~np.asarray(np.isnan(train).all(axis=0))[own.source]
        fitted = replace(own, mean=mean, std=std, fill=np.where(keeps, own.fill, mean))
        parts = problem.train, problem.validation, problem.test
        rows = np.concatenate([part.rows[peer] for part in parts])
        inputs[rows], preprocessing[peer] = fitted.apply(table.cells[rows]), fitted
    return replace(problem, inputs=inputs, preprocessing=tuple(preprocessing))
