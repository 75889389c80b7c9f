"""Accuracy and bytes under `letters.scheme = "increments"`: `python -m studies.bytes`.

Methods that average models and methods that query them, on four problems of the league with tuned
settings, with full letters and increments. Finished runs are kept in `runs/bytes`, so an
interrupted command continues; `table.csv` there has the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.runs import atomic, cells
from studies.kept import kept

OUT = Path("runs/bytes")
PROBLEMS: Mapping[str, Sequence[str]] = {
    "flips": ["presets/dpfl/digits-flips.toml"],
    "patho3": ["presets/dpfl/digits-patho3.toml"],
    "groups": ["presets/federico/digits-groups-3.toml", "federico.loss=mean"],
    "clusters": ["num-server-rounds=75", "partition.validation=0.2"],
}
"""Problems of the league: flipped-labels, three-classes, label-groups and permuted-labels."""
TUNED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "flips": {
        "fedavg": ["learning-rate=0.5623"],
        "ditto": ["learning-rate=0.3", "ditto.lambda=0.1"],
        "pfedgraph": ["learning-rate=0.3", "pfedgraph.alpha=0.8"],
        "cobo": ["learning-rate=0.3", "cobo.gamma=0.1"],
        "dpfl": ["learning-rate=0.3", "dpfl.init-epochs=5"],
        "fedfomo": ["learning-rate=0.3", "fedfomo.epsilon=0.1"],
    },
    "patho3": {
        "fedavg": ["learning-rate=0.1778"],
        "ditto": ["learning-rate=0.1", "ditto.lambda=0.3"],
        "pfedgraph": ["learning-rate=0.3", "pfedgraph.alpha=0.2"],
        "cobo": ["learning-rate=0.3", "cobo.gamma=0.01"],
        "dpfl": ["learning-rate=0.1", "dpfl.init-epochs=5"],
        "fedfomo": ["learning-rate=0.03", "fedfomo.epsilon=0.1"],
    },
    "groups": {
        "fedavg": ["learning-rate=0.03162"],
        "ditto": ["learning-rate=0.01", "ditto.lambda=0.1"],
        "pfedgraph": ["learning-rate=0.003", "pfedgraph.alpha=0.2"],
        "cobo": ["learning-rate=0.003", "cobo.gamma=0.01"],
        "dpfl": ["learning-rate=0.003", "dpfl.init-epochs=2"],
        "fedfomo": ["learning-rate=0.03", "fedfomo.epsilon=0.1"],
    },
    "clusters": {
        "fedavg": ["learning-rate=0.0316"],
        "ditto": ["learning-rate=0.03", "ditto.lambda=0.1"],
        "pfedgraph": ["learning-rate=0.03", "pfedgraph.alpha=0.2"],
        "cobo": ["learning-rate=0.1", "cobo.gamma=0.1"],
        "dpfl": ["learning-rate=0.3", "dpfl.init-epochs=2"],
        "fedfomo": ["learning-rate=0.03", "fedfomo.epsilon=0.1"],
    },
}
"""Settings that `compare --tune` of version 0.1.0 chose with three learning rates."""
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
COMPARED = [name for name in LETTERS if name not in ("int8", "damped")]


@dataclass(frozen=True)
class Outcome:
    """Result of a method with some letters, over seeds.

    Attributes
    ----------
    accuracy, deviation : float
        Mean test accuracy over peers in percent, and its standard deviation over seeds.
    change : float
        Difference to the accuracy with letters "full".
    megabytes : float
        MB that a peer sent, on average.
    fraction : float
        Bytes as a fraction of those with letters "full".
    """

    problem: str
    method: str
    letters: str
    accuracy: float
    deviation: float
    change: float
    megabytes: float
    fraction: float


def config(problem: str, method: str, letters: str, seed: int) -> Config:
    """Return the configuration of a run."""
    items = [*PROBLEMS[problem], *TUNED[problem][method], *LETTERS[letters]]
    items += [f"method={method}", f"seed={seed}", "device=cpu"]
    _, flat = read_items(items, {})
    return Config.from_flat(flat)


def measured(problem: str, method: str, letters: str, seeds: int) -> tuple[list[float], float]:
    """Return the mean test accuracy of each seed in percent, and the mean MB that a peer sent."""
    accuracies, megabytes = [], []
    for seed in range(seeds):
        run = kept(config(problem, method, letters, seed), OUT)
        accuracies.append(100 * float(np.mean(run.metric("test_accuracy")[-1])))
        megabytes.append(float(np.mean(run.metric("bytes_sent")[-1])) / 1e6)
    return accuracies, float(np.mean(megabytes))


def outcomes(problem: str, method: str, letters: Sequence[str], seeds: int) -> list[Outcome]:
    """Return the results of a method with each kind of letters."""
    full, whole = measured(problem, method, "full", seeds)
    results = []
    for name in letters:
        accuracies, megabytes = measured(problem, method, name, seeds)
        mean, deviation = float(np.mean(accuracies)), float(np.std(accuracies))
        change = mean - float(np.mean(full))
        fraction = megabytes / whole
        results.append(Outcome(problem, method, name, mean, deviation, change, megabytes, fraction))
    return results


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default="", help="default: all")
    parser.add_argument("--letters", default=";".join(COMPARED))
    options = parser.parse_args()
    rows: list[Outcome] = []
    for problem in options.problems.split(","):
        for method in options.methods.split(",") if options.methods else TUNED[problem]:
            for row in outcomes(problem, method, options.letters.split(";"), options.seeds):
                rows.append(row)
                print(
                    f"{problem:9} {method:12} {row.letters:20} {row.accuracy:6.2f} "
                    f"({row.change:+5.2f}) {row.megabytes:7.3f} MB {100 * row.fraction:5.1f} %",
                    flush=True,
                )
    lines = [list(asdict(rows[0])), *(list(asdict(row).values()) for row in rows)]
    OUT.mkdir(parents=True, exist_ok=True)
    atomic.write(OUT / "table.csv", cells.as_csv(lines))


if __name__ == "__main__":
    main()
