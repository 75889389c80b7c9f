"""Peers whose test rows cannot judge a model: too few of them, or a single class.

Only data of institutions are checked, where each peer counts for itself. The peers of a divided
data set are judged together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.app.runs.rundir import PARTS, Bools, Run
from coterie.datasets.quality import FILE
from coterie.datasets.table import DATASETS

if TYPE_CHECKING:
    from coterie.datasets.problem import Problem

MIN_ROWS = 20
"""Number of rows below which a peer's result is not a number to judge by."""
TOO_FEW, SINGLE = f"fewer than {MIN_ROWS} {{}} {{}}", "one class only"
ONE_CLASS = "one class only ({}): accuracy is trivially 100 %"


def is_of_institutions(run: Run) -> bool:
    """Return whether the peers of a run are institutions: own data, or a table with quality.csv."""
    row = DATASETS.get(str(run.config.get("dataset")))
    return (row is not None and row.deployed is not None) or (run.directory / FILE).is_file()


def unjudged(run: Run, part: str = "test") -> dict[int, str]:
    """Return why institutions cannot be judged: fewer than `MIN_ROWS` rows, or one class.

    Rows of a group, such as a patient, count once.
    """
    sizes_n = run.sizes(part, in_groups=True)
    if sizes_n is None or not is_of_institutions(run):
        return {}
    too_few = TOO_FEW.format(part, "groups" if run.is_grouped else "rows")
    few = dict.fromkeys(np.flatnonzero(sizes_n < MIN_ROWS).tolist(), too_few)
    return few | dict.fromkeys(one_class(run), SINGLE)


def judged(run: Run) -> Bools:
    """Mask of the peers that can be judged, (n,)."""
    judged_n = np.ones(run.peers, dtype=np.bool_)
    judged_n[[*unjudged(run)]] = False
    return judged_n


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
    parts = (problem.train, problem.validation, problem.test)
    counts_nk = [
        np.bincount(
            np.concatenate([part.targets[peer].ravel() for part in parts]),
            minlength=problem.outputs,
        ).tolist()
        for peer in range(problem.peers)
    ]
    return _one_class_of(counts_nk, problem.classes)


def _one_class_of(counts_nk: Sequence[Sequence[int]], classes: Sequence[str]) -> dict[int, str]:
    """Return the findings from the counts by class."""
    return {
        peer: ONE_CLASS.format(classes[k] if classes else f"class {k}")
        for peer, counts_k in enumerate(counts_nk)
        for k, count in enumerate(counts_k)
        if count and len(counts_k) > 1 and count == sum(counts_k)
    }
