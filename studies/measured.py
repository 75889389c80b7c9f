"""Results of a study of institutions, in a file beside its page: a value per seed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.app.runs import atomic
from coterie.app.runs.rundir import Floats, Run

FIXED = ("method", "settings", "institution", "training_rows", "test_rows", "positives")
"""Columns before those of the measures."""


@dataclass(frozen=True, eq=False)
class Result:
    """Result of a method on a set of institutions.

    Attributes
    ----------
    method : str
        Name of the method.
    settings : str
        Choice of tuning.
    names : tuple of str
        Names of the n institutions.
    samples, tests : ndarray, (n,)
        Number of training and of test examples.
    positives : ndarray, (n,)
        Share of the second class among the training examples of the first seed.
    values : Mapping of str to ndarray, (seeds, n)
        Measures by name; NaN where an institution has no value.
    """

    method: str
    settings: str
    names: tuple[str, ...]
    samples: Floats
    tests: Floats
    positives: Floats
    values: Mapping[str, Floats]

    @classmethod
    def of_runs(
        cls,
        method: str,
        settings: str,
        runs: Sequence[Run],
        measures: Mapping[str, tuple[str, float]],
    ) -> Result:
        """Read the last round of the runs, one per seed; a measure is a metric and its factor."""
        first = runs[0]
        samples, tests, labels = first.samples, first.sizes("test"), first.labels("train")
        assert samples is not None
        assert tests is not None
        assert labels is not None
        values = {
            name: factor * np.array([run.at(metric, run.last_row()) for run in runs])
            for name, (metric, factor) in measures.items()
        }
        shares = labels[:, 1] / labels.sum(axis=1)
        return cls(method, settings, first.names, samples, tests, shares, values)

    def __getitem__(self, measure: str) -> Floats:
        """Return the values of a measure, (seeds, n)."""
        return self.values[measure]

    @property
    def ratio(self) -> float:
        """Number of test examples per training example."""
        return float(self.tests.sum() / self.samples.sum())


def write(path: Path, results: Iterable[Result]) -> None:
    """Write a row per method and institution, with the values of all seeds in one cell."""

    def rows() -> Iterator[Sequence[object]]:
        for position, result in enumerate(results):
            if position == 0:
                yield (*FIXED, *result.values)
            for n, name in enumerate(result.names):
                seeds = (
                    " ".join(f"{v:.6g}" for v in v_sn[:, n]) for v_sn in result.values.values()
                )
                sizes = f"{result.samples[n]:g}", f"{result.tests[n]:g}"
                share = f"{result.positives[n]:.4g}"
                yield (result.method, result.settings, name, *sizes, share, *seeds)

    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, atomic.as_csv(rows()))


def read(path: Path) -> list[Result]:
    """Read what `write` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = [row for row in rows if row["method"] == method]
        samples, tests, positives = (np.array([float(row[key]) for row in of]) for key in FIXED[3:])
        values = {
            key: np.array([[float(v) for v in row[key].split()] for row in of]).T
            for key in of[0]
            if key not in FIXED
        }
        names = tuple(row["institution"] for row in of)
        made.append(Result(method, of[0]["settings"], names, samples, tests, positives, values))
    return made
