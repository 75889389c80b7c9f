"""Small problems for tests, made from a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

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


def write_quadratic(
    path: Path,
    curvature: npt.ArrayLike,
    centre: npt.ArrayLike,
    start: npt.ArrayLike,
    *,
    noise: float = 0.0,
    samples: Sequence[int] | None = None,
    validation_centre: npt.ArrayLike | None = None,
) -> dict[str, str | int]:
    """Write a quadratic problem file; the configuration keys that choose it."""
    n = len(np.asarray(centre))
    table: dict[str, object] = {
        "curvature": np.asarray(curvature, dtype=float).tolist(),
        "centre": np.asarray(centre, dtype=float).tolist(),
        "noise": [noise] * n,
        "start": np.asarray(start, dtype=float).tolist(),
    }
    if samples is not None:
        table["samples"] = list(samples)
    if validation_centre is not None:
        table["validation_centre"] = np.asarray(validation_centre, dtype=float).tolist()
    path.write_text(json.dumps(table), encoding="utf-8")
    return {"dataset": "quadratic", "quadratic.file": str(path), "peers": n}
