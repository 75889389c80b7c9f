"""Patients with several visits, and time: `python -m studies.patients`.

Two invented worlds, each drawn again for every seed. "coin": 4 hospitals, 50 patients, 6 visits
each; the columns of a visit are those of its patient with little noise, the label is a coin per
patient, so no model can predict a new patient. "trend": 4 hospitals, 300 visits, one per patient;
what the columns mean turns with the time of the visit, which one of them shows. Rows are divided
by `table.split` and `table.group`; fills in the table of docs/results/patients.md.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import check
from coterie.app.config.schema import Scalar
from coterie.app.experiments.paired import interval
from coterie.app.runners import inline
from coterie.app.runs.rundir import Floats, Run, create
from studies.tables import fill

PAGE = Path("docs/results/patients.md")
SEEDS = 10
METHODS = (
    "local", "fedavg", "fedprox", "ditto", "apfl", "knn-per", "cobo", "mixture", "selection",
    "stacking", "logistic", "logistic-pooled", "forest", "forest-pooled",
)  # fmt: skip
FEATURES = 5
DIVISIONS: Mapping[tuple[str, str], Mapping[str, Scalar]] = {
    ("coin", "rows"): {},
    ("coin", "patients"): {"table.group": "patient"},
    ("trend", "random"): {},
    ("trend", "time"): {"table.split": "time", "table.time": "day"},
}
"""World and division -> keys of the run."""
FLAT: dict[str, Scalar] = {
    "dataset": "table", "peers": 4, "model": "mlp", "device": "cpu", "num-server-rounds": 40,
    "local-steps": 5, "learning-rate": 0.1, "batch-size": 32, "evaluate-every": 40,
    "table.columns": ", ".join(f"x{k}" for k in range(FEATURES)), "table.label": "ill",
    "table.classes": "no, yes", "table.validation": 0.2,
}  # fmt: skip


def coin(rng: np.random.Generator) -> Iterator[Sequence[object]]:
    """Yield the rows of a hospital whose patients have labels at random."""
    for patient in range(50):
        ill, centre = ["no", "yes"][rng.integers(2)], rng.normal(size=FEATURES)
        for day in np.sort(rng.integers(1000, size=6)):
            visit = centre + 0.05 * rng.normal(size=FEATURES)
            yield [f"P{patient:02}", day, *visit.round(3), ill]


def trend(rng: np.random.Generator) -> Iterator[Sequence[object]]:
    """Yield the rows of a hospital where the meaning of two columns turns with time."""
    for patient, day in enumerate(np.sort(rng.integers(1000, size=300))):
        visit, angle = rng.normal(size=FEATURES), np.pi * day / 1000
        score = 3 * (np.cos(angle) * visit[0] + np.sin(angle) * visit[1])
        visit[2] = 3 * day / 1000 + 0.1 * visit[2]
        ill = ["no", "yes"][int(rng.random() < 1 / (1 + np.exp(-score)))]
        yield [f"P{patient:03}", day, *visit.round(3), ill]


WORLDS = {"coin": coin, "trend": trend}


def write(folder: Path, world: str, seed: int) -> None:
    """Write the tables of the hospitals of a world."""
    header = ["patient", "day", *(f"x{k}" for k in range(FEATURES)), "ill"]
    for number, name in enumerate(("east", "north", "south", "west")):
        (folder / name).mkdir(parents=True)
        with (folder / name / "data.csv").open("w", newline="") as file:
            rows = WORLDS[world](np.random.default_rng([seed, number]))
            csv.writer(file).writerows([header, *rows])


def carried_out(keys: Mapping[str, Scalar], data: Path, directory: Path) -> Run:
    """Carry out a run."""
    config = Config.from_flat({**FLAT, **keys, "data-dir": str(data)})
    config = replace(config, run_dir=str(directory))
    create(config, check(config))
    inline.run(config)
    return Run.read(directory)


def cell(values: Sequence[Floats], chance: float, factor: float) -> str:
    """Write mean and half the 95 % interval over seeds; bold where it excludes chance."""
    mean, low, high = (factor * x for x in interval([of - chance for of in values]))
    text = f"{mean + factor * chance:.1f} ± {(high - low) / 2:.1f}"
    return f"**{text}**" if not low <= 0 <= high else text


def lines(seeds: int, methods: Sequence[str]) -> list[str]:
    """Return the lines of the table: accuracy and AUROC of each method in each division."""
    values: dict[tuple[str, str], dict[tuple[str, str], list[Floats]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(seeds):
            for world in WORLDS:
                write(Path(directory) / world / str(seed), world, seed)
            for (world, division), more in DIVISIONS.items():
                for method in methods:
                    keys = {**more, "method": method, "seed": seed}
                    data = Path(directory) / world / str(seed)
                    out = Path(directory) / "runs" / world / division / method / str(seed)
                    run = carried_out(keys, data, out)
                    for measure in ("test_accuracy", "auroc"):
                        of = values.setdefault((world, division), {})
                        of.setdefault((measure, method), []).append(run.last(measure))
    heads = [f"{world}, by {division}" for world, division in DIVISIONS]
    made = [
        f"| method | {' | '.join(f'{head}: accuracy | AUROC' for head in heads)} |",
        f"|---|{'---|' * 2 * len(heads)}",
    ]
    for method in methods:
        cells = [
            cell(values[of][measure, method], 0.5, 100)
            for of in DIVISIONS
            for measure in ("test_accuracy", "auroc")
        ]
        made.append(f"| {method} | {' | '.join(cells)} |")
    return made


def main() -> None:
    """Carry out all runs, and fill in the page."""
    table = lines(SEEDS, METHODS)
    print("\n".join(table))
    fill(PAGE, {"table": table})


if __name__ == "__main__":
    main()
