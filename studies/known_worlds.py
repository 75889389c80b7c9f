"""Partial pooling in worlds whose groups are known: `python -m studies.known_worlds`.

Institutions of a world have logistic regressions with coefficients of N(0, 4 / d) in each group, a
deviation of N(0, 0.15^2 / d) of their own, and intercepts of N(0, 0.49): prevalences differ. Gains
are percentage points of accuracy on 2,000 new rows of each institution over scikit-learn's logistic
regression at home (C = 1). "Harmed": institutions that lose more than 0.5 points. "Exact": the most
probable groups are the true ones. "Cover": share of the true slopes within 95 % intervals. In
"drift" the coefficients move evenly from the first institution to the last, and no groups are true.

`--methods` runs methods of the product beside it: a quarter of the rows tunes the learning rate and
one more key of each, for 40 rounds; partial pooling uses all rows in one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import coterie
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
    "drift": np.arange,
}
"""True group of each of n institutions."""
NEW_ROWS = 2000
METHODS = "local,cobo,dpfl,pfedgraph,fedamp,all-for-one,ditto,fedavg-own-intercept"
KEYS: dict[str, Any] = {
    "model": "linear", "num-server-rounds": 40, "evaluate-every": 40, "local-steps": 5,
    "batch-size": 60, "device": "cpu",
}  # fmt: skip
ONCE: dict[str, Any] = {"model": "linear", "num-server-rounds": 1}
"""Keys of methods with rounds, and of partial pooling; the others are defaults."""


class World(NamedTuple):
    """Institutions with their rows."""

    group: Ints
    slopes: Floats
    train: list[tuple[Floats, Ints]]
    new: list[tuple[Floats, Ints]]


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


def draw(kind: str, rows: int, columns: int, n: int, seed: int) -> World:
    """Draw a world."""
    g = np.random.default_rng(seed)
    group = WORLDS[kind](n)
    centres = g.normal(size=(group.max() + 1, columns)) * 2 / np.sqrt(columns)
    if kind == "one outlier":
        centres[1] = -centres[0]
    if kind == "drift":
        centres = np.linspace(centres[0], centres[-1], n)
    slopes = centres[group] + 0.15 * g.normal(size=(n, columns)) / np.sqrt(columns)
    intercepts = 0.7 * g.normal(size=n)
    train, new = list[tuple[Floats, Ints]](), list[tuple[Floats, Ints]]()
    for i in range(n):
        for into, count in ((train, rows), (new, NEW_ROWS)):
            x = g.normal(size=(count, columns))
            chance = 1 / (1 + np.exp(-(x @ slopes[i] + intercepts[i])))
            into.append((x, (g.random(count) < chance).astype(np.int64)))
    return World(group, slopes, train, new)


def fitted(world: World, members: list[int]) -> LogisticRegression | float:
    """Return a logistic regression of these institutions' rows, or their only class."""
    x = np.concatenate([world.train[i][0] for i in members])
    y = np.concatenate([world.train[i][1] for i in members])
    return LogisticRegression(max_iter=1000).fit(x, y) if len(set(y)) > 1 else float(y[0])


def percent(world: World, i: int, model: LogisticRegression | float) -> float:
    """Return the accuracy on new rows of institution i, in percent."""
    x, y = world.new[i]
    predicted = model if isinstance(model, float) else model.predict(x)
    return 100 * float(np.mean(predicted == y))


def at_home(world: World) -> Floats:
    """Return the accuracies of logistic regression at home, (n,), in percent."""
    return np.array([percent(world, i, fitted(world, [i])) for i in range(len(world.group))])


def outcome(world: World) -> Outcome:
    """Fit partial pooling, the true groups and everybody in one world."""
    group, n = world.group, len(world.group)
    effects, home = letters(world.train), at_home(world)
    theta = effects.estimates
    mine = [
        np.mean((x @ theta[i, 1:] + theta[i, 0] > 0) == y) for i, (x, y) in enumerate(world.new)
    ]
    same = [fitted(world, [j for j in range(n) if group[j] == group[i]]) for i in range(n)]
    everybody = fitted(world, list(range(n)))
    likely = np.array(labels(effects))
    half = 1.96 * np.sqrt(np.diagonal(effects.covariances, axis1=1, axis2=2)[:, 1:])
    return Outcome(
        100 * np.array(mine) - home,
        np.array([percent(world, i, same[i]) for i in range(n)]) - home,
        np.array([percent(world, i, everybody) for i in range(n)]) - home,
        bool(((likely[:, None] == likely) == (group[:, None] == group)).all()),
        100 * float(np.mean(np.abs(theta[:, 1:] - world.slopes) <= half)),
        effects.groups,
    )


def beside(world: World, methods: list[str], seed: int) -> list[tuple[float, float, float]]:
    """Return the gain of each method, the bytes that a peer sends, and the seconds of its run."""
    data = [
        {
            "x": x[: -len(x) // 4], "y": y[: -len(x) // 4], "x_validation": x[-len(x) // 4 :],
            "y_validation": y[-len(x) // 4 :], "x_test": x_new, "y_test": y_new,
            "classes": ["0", "1"],
        }
        for (x, y), (x_new, y_new) in zip(world.train, world.new, strict=True)
    ]  # fmt: skip
    whole = [
        {"x": x, "y": y, "x_test": x_new, "y_test": y_new, "classes": ["0", "1"]}
        for (x, y), (x_new, y_new) in zip(world.train, world.new, strict=True)
    ]
    results, home = list[tuple[float, float, float]](), at_home(world).mean()
    with tempfile.TemporaryDirectory() as folder:
        tuned = coterie.compare(
            methods, None, KEYS | {"seed": seed}, peers_data=data, tune=True, seeds=1,
            yardsticks="none", out=Path(folder, "tuned"),
        )  # fmt: skip
        once = coterie.compare(
            ["partial-pooling"], None, ONCE | {"seed": seed}, peers_data=whole, seeds=1,
            yardsticks="none", out=Path(folder, "once"),
        )  # fmt: skip
        for runs in (*tuned.runs.values(), *once.runs.values()):
            last = runs[0].metrics.query("round == round.max()")
            seconds = runs[0].summary["wall_seconds"]
            accuracy = 100 * float(last.test_accuracy.mean())
            results.append((accuracy - home, float(last.bytes_sent.mean()), float(seconds)))
    return results


def own_table(chosen: argparse.Namespace) -> Table:
    """Return the table of partial pooling in all worlds."""
    table = Table(
        "world", "gain ± sd", "true groups", "all pooled", "worst", "harmed %", "exact", "cover %"
    )
    for kind in WORLDS:
        all_ = [
            outcome(draw(kind, chosen.rows, chosen.columns, chosen.institutions, 1000 + seed))
            for seed in range(chosen.worlds)
        ]
        gains = [each.gains.mean() for each in all_]
        harmed = 100 * np.mean([each.gains < -0.5 for each in all_])
        exact = f"{sum(each.exact for each in all_)} of {len(all_)}" if kind != "drift" else "-"
        table.add_row(
            kind, f"{np.mean(gains):+.1f} ± {np.std(gains, ddof=1):.1f}",
            f"{np.mean([each.oracle.mean() for each in all_]):+.1f}",
            f"{np.mean([each.pooled.mean() for each in all_]):+.1f}",
            f"{np.mean([each.gains.min() for each in all_]):+.1f}", f"{harmed:.0f}", exact,
            f"{np.mean([each.cover for each in all_]):.0f}",
        )  # fmt: skip
    return table


def table_beside(chosen: argparse.Namespace) -> Table:
    """Return the gains of the product's methods by world, then their bytes and seconds."""
    methods = chosen.methods.split(",")
    table = Table("world", *methods, "partial-pooling")
    costs = []
    for kind in WORLDS:
        size = (chosen.rows, chosen.columns, chosen.institutions)
        results = [
            beside(draw(kind, *size, 1000 + seed), methods, seed) for seed in range(chosen.worlds)
        ]
        costs += results
        table.add_row(kind, *(f"{gain:+.1f}" for gain in np.mean(results, axis=0)[:, 0]))
    cost = np.mean(costs, axis=0)
    table.add_row("kB sent", *(f"{each / 1000:.1f}" for each in cost[:, 1]))
    table.add_row("seconds", *(f"{each:.1f}" for each in cost[:, 2]))
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Partial pooling in known worlds.")
    for name, value in (("rows", 240), ("columns", 20), ("institutions", 8), ("worlds", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--methods", nargs="?", const=METHODS, help="methods of the product")
    chosen = parser.parse_args()
    console = Console(width=140)
    console.print(
        f"{chosen.rows} rows, {chosen.columns} columns, {chosen.institutions} institutions"
    )
    if chosen.methods:
        console.print(table_beside(chosen))
        return
    with threadpool_limits(1):
        console.print(own_table(chosen))


if __name__ == "__main__":
    main()
