"""Accuracy and bytes under `letters.scheme = "increments"`: `python -m studies.bytes`.

Every method that offers models, on four problems of the league with the settings that it chose. The
results with full letters are those of the league. Finished runs are kept in `runs/bytes`, so an
interrupted command continues; `table.csv` there has the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from coterie.app.comparisons.league import configurations
from coterie.app.config.config import Config
from coterie.app.config.items import read_pair
from coterie.app.config.registry import METHODS
from coterie.app.report import league
from coterie.app.runs import atomic, cells
from studies.kept import kept

OUT = Path("runs/bytes")
PROBLEMS = ("flipped-labels", "three-classes", "label-groups", "permuted-labels")
SEEDS = 3
_INCREMENTS = "letters.scheme=increments"
LETTERS: Mapping[str, Sequence[str]] = {
    "full": [],
    "int8": ["payload=int8"],
    "int4": [_INCREMENTS, "letters.operator=int4", "payload=int8"],
    "sign": [_INCREMENTS, "letters.operator=sign", "payload=int8"],
    "sign, int4": [_INCREMENTS, "letters.operator=sign", "payload=int4"],
    "top-k": [
        *(_INCREMENTS, "letters.operator=top-k", "letters.ratio=0.05"),
        *("letters.damping=0.5", "payload=int8"),
    ],
    "damped": [
        _INCREMENTS, "letters.operator=top-k", "letters.ratio=1.0", "letters.damping=0.5",
    ],
}  # fmt: skip
"""Letters that are compared; "damped" are full letters with the damping of top-k."""


@dataclass(frozen=True)
class Outcome:
    """Result of a method with some letters, over seeds.

    Attributes
    ----------
    accuracy : float
        Mean test accuracy over peers in percent.
    change, deviation : float
        Difference to the accuracy with full letters, and its standard deviation over seeds.
    megabytes : float
        MB that a peer sent, on average.
    fraction : float
        Bytes as a fraction of those of full letters.
    """

    problem: str
    method: str
    letters: str
    accuracy: float
    change: float
    deviation: float
    megabytes: float
    fraction: float


def outcome(problem: str, method: str, letters: str) -> Outcome:
    """Return the results of a method with some letters; carry out the runs that are missing."""
    measured = league.read(problem, league.PUBLISHED)
    course, cell = measured[method, "course"], measured[method, "accuracy"]
    full = 100 * np.array([np.mean(values) for values in cell.values[:SEEDS]])
    whole = np.array([sent[-1] for sent, _ in course.values[:SEEDS]])
    configs = configurations(
        league.problem(problem, league.PUBLISHED), "plain", method, cell.choice.settings
    )
    changed = dict(map(read_pair, LETTERS[letters]))
    runs = [
        kept(Config.from_flat({**config.flat(), **changed, "device": "cpu"}), OUT)
        for config in configs[:SEEDS]
    ]
    accuracy = 100 * np.array([run.metric("test_accuracy")[-1].mean() for run in runs])
    sent = np.array([run.metric("bytes_sent")[-1].mean() for run in runs])
    return Outcome(
        problem, method, letters, float(accuracy.mean()), float((accuracy - full).mean()),
        float((accuracy - full).std()), float(sent.mean() / 1e6), float(sent.sum() / whole.sum()),
    )  # fmt: skip


def offering() -> list[str]:
    """Return the methods whose offers are their models."""
    return [name for name, row in METHODS.items() if row.rule.offers_model and name != "local"]


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(offering()))
    parser.add_argument("--letters", default="sign")
    options = parser.parse_args()
    rows: list[Outcome] = []
    for problem in options.problems.split(","):
        for method in options.methods.split(","):
            if (method, "accuracy") not in league.read(problem, league.PUBLISHED):
                continue
            for letters in options.letters.split(";"):
                row = outcome(problem, method, letters)
                rows.append(row)
                print(
                    f"{problem:15} {method:20} {letters:11} {row.accuracy:6.2f} "
                    f"({row.change:+5.2f} ± {row.deviation:4.2f}) {row.megabytes:7.3f} MB "
                    f"{100 * row.fraction:5.1f} %",
                    flush=True,
                )
    lines = [list(asdict(rows[0])), *(list(asdict(row).values()) for row in rows)]
    OUT.mkdir(parents=True, exist_ok=True)
    atomic.write(OUT / "table.csv", cells.as_csv(lines))


if __name__ == "__main__":
    main()
