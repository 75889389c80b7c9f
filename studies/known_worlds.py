"""Partial pooling in worlds whose groups are known: `python -m studies.known_worlds`.

Institutions of a world have logistic regressions with coefficients of N(0, 4 / d) in each group, a
deviation of N(0, 0.15^2 / d) of their own, and intercepts of N(0, 0.49): prevalences differ. Gains
are percentage points of accuracy on 2,000 new rows of each institution over scikit-learn's logistic
regression at home (C = 1). "Exact": the most probable groups are the true ones. "Cover": share of
the true slopes within 95 % intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from coterie.clients.engine.linear import quadratic
from coterie.clients.engine.tasks import TASKS
from coterie.clients.parts.random_effects import ALONE, FREE, Effects, estimated

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
WORLDS: dict[str, Callable[[int], Ints]] = {
    "one population": lambda n: np.zeros(n, dtype=np.int64),
    "two groups": lambda n: (np.arange(n) >= n // 2).astype(np.int64),
    "a quarter differs": lambda n: (np.arange(n) >= n - n // 4).astype(np.int64),
    "one outlier": lambda n: (np.arange(n) == n - 1).astype(np.int64),
    "three groups": lambda n: np.arange(n) % 3,
    "all differ": np.arange,
}
"""True group of each of n institutions."""
NEW_ROWS = 2000


class Outcome(NamedTuple):
    """Results in one world."""

    gains: Floats  # by institution
    oracle: Floats  # of pooling the true groups
    pooled: Floats  # of pooling everybody
    exact: bool
    cover: float
    groups: int


def letters(data: list[tuple[Floats, Ints]]) -> Effects:
    """Return the random effects of institutions with these rows."""
    d = data[0][0].shape[1] + 1
    is_free = np.arange(d) == 0
    precision = 1 / np.where(is_free, FREE, ALONE)
    task = TASKS["classification"]
    sent = [quadratic(task, "classification", x, y, 2, np.zeros(d), precision) for x, y in data]
    return estimated(
        np.array([each.b for each in sent]), np.array([each.h for each in sent]), is_free
    )


def labels(effects: Effects) -> list[int]:
    """Return each institution's most probable group; each in the background has its own."""
    best = effects.membership.argmax(axis=1)
    return [int(k) if k < effects.groups else -1 - i for i, k in enumerate(best)]


def outcome(kind: str, rows: int, columns: int, n: int, seed: int) -> Outcome:
    """Draw one world and fit all in it."""
    g = np.random.default_rng(seed)
    group = WORLDS[kind](n)
    centres = g.normal(size=(group.max() + 1, columns)) * 2 / np.sqrt(columns)
    if kind == "one outlier":
        centres[1] = -centres[0]
    slopes = centres[group] + 0.15 * g.normal(size=(n, columns)) / np.sqrt(columns)
    intercepts = 0.7 * g.normal(size=n)
    train, new = list[tuple[Floats, Ints]](), list[tuple[Floats, Ints]]()
    for i in range(n):
        for into, count in ((train, rows), (new, NEW_ROWS)):
            x = g.normal(size=(count, columns))
            chance = 1 / (1 + np.exp(-(x @ slopes[i] + intercepts[i])))
            into.append((x, (g.random(count) < chance).astype(np.int64)))
    effects = letters(train)

    def fitted(members: list[int]) -> LogisticRegression | float:
        x = np.concatenate([train[i][0] for i in members])
        y = np.concatenate([train[i][1] for i in members])
        return LogisticRegression(max_iter=1000).fit(x, y) if len(set(y)) > 1 else float(y[0])

    def percent(i: int, model: LogisticRegression | float) -> float:
        x, y = new[i]
        predicted = model if isinstance(model, float) else model.predict(x)
        return 100 * float(np.mean(predicted == y))

    home = np.array([percent(i, fitted([i])) for i in range(n)])
    theta = effects.estimates
    mine = [np.mean((x @ theta[i, 1:] + theta[i, 0] > 0) == y) for i, (x, y) in enumerate(new)]
    same = [fitted([j for j in range(n) if group[j] == group[i]]) for i in range(n)]
    everybody = fitted(list(range(n)))
    likely = np.array(labels(effects))
    half = 1.96 * np.sqrt(np.diagonal(effects.covariances, axis1=1, axis2=2)[:, 1:])
    return Outcome(
        100 * np.array(mine) - home,
        np.array([percent(i, same[i]) for i in range(n)]) - home,
        np.array([percent(i, everybody) for i in range(n)]) - home,
        bool(((likely[:, None] == likely) == (group[:, None] == group)).all()),
        100 * float(np.mean(np.abs(theta[:, 1:] - slopes) <= half)),
        effects.groups,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Partial pooling in known worlds.")
    for name, value in (("rows", 240), ("columns", 20), ("institutions", 8), ("worlds", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    console = Console(width=120)
    table = Table("world", "gain ± sd", "true groups", "all pooled", "worst", "exact", "cover %")
    for kind in WORLDS:
        with threadpool_limits(1):
            all_ = [
                outcome(kind, chosen.rows, chosen.columns, chosen.institutions, 1000 + seed)
                for seed in range(chosen.worlds)
            ]
        gains = [each.gains.mean() for each in all_]
        table.add_row(
            kind, f"{np.mean(gains):+.1f} ± {np.std(gains, ddof=1):.1f}",
            f"{np.mean([each.oracle.mean() for each in all_]):+.1f}",
            f"{np.mean([each.pooled.mean() for each in all_]):+.1f}",
            f"{np.mean([each.gains.min() for each in all_]):+.1f}",
            f"{sum(each.exact for each in all_)} of {len(all_)}",
            f"{np.mean([each.cover for each in all_]):.0f}",
        )  # fmt: skip
    console.print(
        f"{chosen.rows} rows, {chosen.columns} columns, {chosen.institutions} institutions"
    )
    console.print(table)


if __name__ == "__main__":
    main()
