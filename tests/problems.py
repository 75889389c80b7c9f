"""Small problems for tests, made from a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.problem import Problem, Split

Floats = npt.NDArray[np.float64]


def classification(
    sizes: Sequence[int],
    *,
    shape: tuple[int, ...] = (1, 4, 4),
    classes: int = 3,
    tests: Sequence[int] | None = None,
    validations: Sequence[int] | None = None,
    seed: int = 0,
) -> Problem:
    """Random inputs and labels; peer i has `sizes[i]` training and `tests[i]` test examples."""
    g = np.random.default_rng(seed)
    tests = [5] * len(sizes) if tests is None else tests
    validations = [0] * len(sizes) if validations is None else validations
    total = sum(sizes) + sum(tests) + sum(validations)
    order = g.permutation(total)  # peers' rows are scattered over the pool

    def split(lengths: Sequence[int], first: int) -> Split:
        ends = first + np.cumsum(lengths)
        rows = tuple(np.split(order[first : first + sum(lengths)], ends[:-1] - first))
        return Split(rows, tuple(g.integers(classes, size=len(r)) for r in rows))

    return Problem(
        name="toy",
        task="classification",
        inputs=g.normal(1.0, 2.0, (total, *shape)),
        train=split(sizes, 0),
        validation=split(validations, sum(sizes) + sum(tests)),
        test=split(tests, sum(sizes)),
        outputs=classes,
        mean=np.full(shape[:1] + (1,) * (len(shape) - 1), 1.0),
        std=np.full(shape[:1] + (1,) * (len(shape) - 1), 2.0),
        samples=np.array(sizes),
    )


def write_lifetimes(folder: Path, patients: int = 60) -> dict[str, Any]:
    """Write three hospitals' tables of survival; return the keys of a run on them.

    The hazard is exp(marker - 1) per unit of time; half of the patients are observed for less than
    a random time below 6.
    """
    folder.mkdir(parents=True)
    (folder / "schema.toml").write_text(
        "[columns.marker]\n[columns.time]\ncuts = [1, 2, 4]\n[columns.event]\n"
    )
    for number, name in enumerate(("a-north", "b-south", "c-west")):
        g = np.random.default_rng(number)
        marker = g.normal(size=patients)
        death, end = g.exponential(np.exp(1 - marker)), g.uniform(0, 12, patients)
        rows = zip(marker, np.minimum(death, end), death <= end, strict=True)
        lines = ["marker,time,event", *(f"{m:.3f},{t:.3f},{int(e)}" for m, t, e in rows), ""]
        (folder / name).mkdir()
        (folder / name / "data.csv").write_text("\n".join(lines))
    return {
        "dataset": "table", "data-dir": str(folder), "peers": 3, "model": "linear",
        "num-server-rounds": 4, "local-steps": 10, "learning-rate": 0.5, "device": "cpu",
        "table.columns": "all", "table.label": "time", "table.event": "event",
        "table.schema": "file", "table.test": 0.3, "table.validation": 0.2,
    }  # fmt: skip


def write_quadratic(
    path: Path,
    curvature: npt.ArrayLike,
    centre: npt.ArrayLike,
    start: npt.ArrayLike,
    *,
    noise: npt.ArrayLike = 0.0,
    samples: Sequence[int] | None = None,
    validation_centre: npt.ArrayLike | None = None,
) -> dict[str, str | int]:
    """Write a quadratic problem file; the configuration keys that choose it."""
    n = len(np.asarray(centre))
    table: dict[str, object] = {
        "curvature": np.asarray(curvature, dtype=float).tolist(),
        "centre": np.asarray(centre, dtype=float).tolist(),
        "noise": np.broadcast_to(noise, n).tolist(),
        "start": np.asarray(start, dtype=float).tolist(),
    }
    if samples is not None:
        table["samples"] = list(samples)
    if validation_centre is not None:
        table["validation_centre"] = np.asarray(validation_centre, dtype=float).tolist()
    path.write_text(json.dumps(table), encoding="utf-8")
    return {"dataset": "quadratic", "quadratic.file": str(path), "peers": n}


def parabolas(folder: Path, peers: int) -> dict[str, str | int]:
    """Write f_i(x) = x^2 / 2 in one dimension, from 0."""
    return write_quadratic(folder / "problem.json", [[1.0]] * peers, [[0.0]] * peers, [0.0])
