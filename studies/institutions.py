"""Every method on data of real institutions: `python -m studies.institutions [SET ...]`.

For each set of `coterie data list` that has been fetched: all methods, tuned equally on validation
data of the first seed (`coterie compare --tune`), then ten seeds, each with another random division
into training and test data. Writes tables.md and results.csv below runs/institutions; finished runs
are kept, so an interrupted command continues.

Intervals are those of Nadeau and Bengio (2003) for repeated random divisions: over J seeds the
variance of the mean is (1/J + test/training) times the sample variance, because the training sets
overlap; Student's t with J - 1 degrees of freedom, 95 %.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from coterie.app.report.tuning import FILE as TUNING
from coterie.app.runs.metrics import Floats
from coterie.app.runs.rundir import Run

OUT = Path("runs/institutions")
DATA = Path("data")
SEEDS = 10
LEVEL = 0.95
ALONE = "local"
SHARED = "fedavg"
FLAMBY: Mapping[str, tuple[float, ...]] = {
    "each hospital alone": (74.6, 74.6, 72.5, 70.2),
    "FedAvg": (73.1, 71.9, 65.0, 64.0),
    "FedProx": (73.1, 71.9, 65.0, 64.0),
    "Scaffold": (72.7, 71.9, 65.0, 64.0),
    "FedAdam": (75.2, 74.6, 73.8, 66.7),
    "FedAdagrad, FedYogi": (76.0, 75.3, 73.8, 67.6),
    "pooled data": (78.3, 76.4, 75.0, 64.4),
}
"""FLamby's accuracy by hospital on heart disease: means over its five result files."""


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
    accuracy, auroc : ndarray, (seeds, n)
        Test accuracy in percent, and AUROC; NaN where an institution's test data have one class.
    samples, tests : ndarray, (n,)
        Number of training and of test examples.
    positives : ndarray, (n,)
        Share of the second class among the training examples of the first seed.
    """

    method: str
    settings: str
    names: tuple[str, ...]
    accuracy: Floats
    auroc: Floats
    samples: Floats
    tests: Floats
    positives: Floats

    @property
    def ratio(self) -> float:
        """Number of test examples per training example."""
        return float(self.tests.sum() / self.samples.sum())

    def worst(self) -> tuple[str, float]:
        """Return the institution with the smallest mean accuracy, and that mean."""
        mean_n = self.accuracy.mean(axis=0)
        return self.names[int(mean_n.argmin())], float(mean_n.min())


def interval(values: Floats, ratio: float) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its 95 % interval (Nadeau and Bengio).

    Parameters
    ----------
    values : ndarray, (seeds,)
        A value per random division.
    ratio : float
        Number of test examples per training example.
    """
    count = len(values)
    deviation = values.std(ddof=1) * np.sqrt(1 / count + ratio)
    return float(values.mean()), float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * deviation)


def results(directory: Path) -> list[Result]:
    """Read the runs of a comparison, by method."""
    with (directory / TUNING).open(newline="", encoding="utf-8") as file:
        chosen = {
            row["method"]: row["settings"] for row in csv.DictReader(file) if row["chosen"] == "1"
        }
    runs: dict[str, dict[int, Run]] = {}
    for path in sorted(directory.glob("*/summary.json")):
        run = Run.read(path.parent)
        runs.setdefault(run.config["method"], {})[run.config["seed"]] = run
    made = []
    for method, of_seed in runs.items():
        first, rows = of_seed[min(of_seed)], [of_seed[seed] for seed in sorted(of_seed)]
        tests, samples = first.sizes("test"), first.samples
        labels = first.labels("train")
        assert tests is not None
        assert samples is not None
        assert labels is not None
        made.append(
            Result(
                method,
                chosen[method].strip("{}").replace('"', ""),
                tuple(first.names),
                100 * np.array([run.at("test_accuracy", run.last_row()) for run in rows]),
                np.array([run.at("auroc", run.last_row()) for run in rows]),
                samples,
                tests,
                labels[:, 1] / labels.sum(axis=1),
            )
        )
    return made
