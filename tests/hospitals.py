"""Tables of three small hospitals, for tests."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

HEADER = ["age", "sex", "glucose", "readmitted"]
SCHEMA = """
[columns.age]
low = 0
high = 120
[columns.sex]
kind = "category"
categories = ["f", "m"]
[columns.glucose]
unit = "mmol/l"
[columns.readmitted]
kind = "category"
categories = ["no", "yes"]
"""
TABLE: dict[str, Any] = {
    "dataset": "table", "peers": 3, "num-server-rounds": 3, "model": "linear", "method": "fedem",
    "table.columns": "age, sex, glucose", "table.label": "readmitted", "table.schema": "file",
    "table.missing": "mean", "device": "cpu", "learning-rate": 0.5, "local-steps": 4,
}  # fmt: skip


def write_hospitals(folder: Path) -> None:
    """Three hospitals with gaps; in the last one the young are readmitted."""
    g = np.random.default_rng(0)
    for number, name in enumerate(("north", "south", "west")):
        (folder / name).mkdir(parents=True)
        for part, patients in (("train", 40), ("test", 30)):
            age = g.normal(60, 12, patients)
            ill = (age + 3 * g.normal(size=patients) > 60) != (number == 2)
            with (folder / name / f"{part}.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(HEADER)
                for k in range(patients):
                    sex, label = "fm"[int(g.integers(2))], ("no", "yes")[int(ill[k])]
                    glucose = f"{g.normal(6, 1):.1f}" if k % 7 else ""
                    rows.writerow([f"{age[k]:.1f}", sex, glucose, label])
    (folder / "schema.toml").write_text(SCHEMA)
