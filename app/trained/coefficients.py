"""coefficients.csv: what partial pooling knows about each institution's coefficients.

A row per institution and column, then one per group and column: estimate at home, shrunk estimate
with its 95 % interval, and the group. Coefficients are log odds against the first class or of the
event in an interval, or differences of the outcome, per `step` of the column: its standard
deviation, or 1 for a category.
`spread` is the standard deviation of the institutions' coefficients within a group; `evidence`
has the log evidence of 0, 1, ... groups, less BIC's penalty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.app.runs import atomic
from coterie.app.trained.about import About
from coterie.datasets.preprocessing import IS_MISSING, NO_CODE

Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]
Rows = Iterator[list[str]]
FILE = "coefficients.csv"
HEADER = [
    "institution", "column", "own", "estimate", "low", "high", "group", "step", "spread", "evidence"
]  # fmt: skip
Z = 1.959963984540054
"""97.5th percentile of the normal distribution."""


def columns_of(about: About, count: int) -> tuple[list[str], Floats, Floats]:
    """Return the columns' names, (d,), their steps, and the factors from theta to coefficients."""
    scores = max(about.outputs - (about.task == "classification"), 1)
    inputs = count // scores - 1
    names, steps, std = [f"input {j + 1}" for j in range(inputs)], np.ones(inputs), np.ones(inputs)
    fitted = about.preprocessing
    if fitted is not None and fitted.source is not None and fitted.code is not None:
        run = np.asarray(about.normalisation["std"], dtype=np.float64)
        std = np.broadcast_to(run if fitted.std is None else run * fitted.std, (inputs,))
        steps = np.where(fitted.code == NO_CODE, std, 1.0)
        of = [fitted.columns[source] for source in fitted.source.tolist()]
        names = [
            column.name if code == NO_CODE
            else f"{column.name} is missing" if code == IS_MISSING
            else f"{column.name} = {column.categories[code]}"
            for column, code in zip(of, fitted.code.tolist(), strict=True)
        ]  # fmt: skip
    before = [""]
    if scores > 1 and about.task == "classification":
        first, *others = about.class_names()
        before = [f"{each} against {first}: " for each in others]
    elif about.task == "survival":
        before = [f"event before {each}: " for each in about.class_names()]
    elif scores > 1:
        before = [f"output {k + 1}: " for k in range(scores)]
    return (
        [f"{prefix}{name}" for prefix in before for name in ("intercept", *names)],
        np.tile(np.insert(steps, 0, 1.0), scores),
        np.tile(np.insert(steps / std, 0, 1.0), scores),
    )


def table(known: Mapping[int, tuple[About, Arrays]], names: Mapping[int, str]) -> str:
    """Return the file of a node's peers, each with what its model file has as "effects.*".

    A hosted peer's own row is as itself knows it; the others' and the groups' are as the first
    hosted peer does.
    """
    first = min(known)
    about, seen = known[first]
    columns, steps, factors = columns_of(about, seen["effects.estimates"].shape[1])
    spread = seen["effects.spread"] * factors
    evidence = " ".join(f"{k}:{each:+.1f}" for k, each in enumerate(seen["effects.evidences"]))

    def lines(who: str, group: int, mean: Floats, sd: Floats, own: Floats | None) -> Rows:
        low, high = mean - Z * sd, mean + Z * sd
        for j, column in enumerate(columns):
            numbers = [None if own is None else own[j], mean[j], low[j], high[j]]
            scaled = ["" if x is None else f"{x * factors[j]:.6g}" for x in numbers]
            label = "none" if group < 0 else str(group + 1)
            yield [who, column, *scaled, label, f"{steps[j]:.6g}", f"{spread[j]:.6g}", evidence]

    rows = [HEADER]
    for peer in seen["effects.peers"].astype(np.int64).tolist():
        view = known[peer][1] if peer in known else seen
        at = view["effects.peers"].astype(np.int64).tolist().index(peer)
        group, mean, sd, own = (
            view[f"effects.{name}"][at] for name in ("groups", "estimates", "deviations", "own")
        )
        rows += lines(names.get(peer) or f"peer {peer}", int(group), mean, sd, own)
    for k, mean in enumerate(seen["effects.means"]):
        rows += lines(f"group {k + 1}", k, mean, seen["effects.mean_deviations"][k], None)
    return atomic.as_csv([[*map(atomic.safe, row)] for row in rows])
