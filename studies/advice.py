"""Error rates of the advice to institutions, in known worlds: `python -m studies.advice`.

A world has eight institutions with logistic regressions. Each seed divides their rows again, 25 %
for testing; their own model is a logistic regression (C = 1) of the training rows, the method that
is judged one of all institutions' training rows with an intercept for each. In the worlds called
null both are fitted to random halves of the same training rows, so that neither is better. The
expected gain of an institution is the mean over worlds of the gain on 2,000 new rows.

"Before" is the advice until 0.2.0: an interval of each institution by itself, and nothing for fewer
than 20 rows of the rarer class in one division.

"Tuning": a logistic regression of an institution has the best of 15 settings on 20 % of the
training rows of the first seed, some of which other seeds test. Its optimism is the accuracy on
these seeds' test rows less that on new rows, less the same of a setting drawn by chance.

The tables go to docs/results/advice.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from coterie.app.experiments import effects, paired
from coterie.app.report import advice
from coterie.app.report.advice import Evidence
from coterie.app.runs.quality import MIN_ROWS
from studies.tables import fill

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
PAGE = Path("docs/results/advice.md")
INSTITUTIONS, COLUMNS, NEW_ROWS = 8, 40, 2000
TEST, VALIDATION = 0.25, 0.2
SEEDS = (3, 10)
RATIO = TEST / (1 - TEST)


class World(NamedTuple):
    """Slopes of the last institution from those of all others, prevalences, and the method."""

    last: Callable[[Floats, Floats], Floats]  # of the common slopes, and of others
    halves: bool = False  # two groups instead of one institution that differs
    log_odds: float = 0.0  # of prevalence, with alternating sign
    null: bool = False


def _same(common: Floats, other: Floats) -> Floats:
    return common


WORLDS = {
    "null": World(_same, null=True),
    "null, prevalence 20/80": World(_same, null=True, log_odds=2.0),
    "one population": World(_same),
    "one population, prevalence 20/80": World(_same, log_odds=2.0),
    "one gains nothing": World(lambda common, other: 0.78 * common + 0.63 * other),
    "two groups": World(lambda common, other: other, halves=True),
    "one outlier": World(lambda common, other: -common),
}


class Simulated(NamedTuple):
    """Results in one world: gains in accuracy and AUROC of each seed, and their expectation."""

    accuracy: Floats  # (S, n)
    auroc: Floats  # (S, n); NaN if a test part has one class
    positives: Floats  # share of positives, (n,)
    new: Floats  # gain in accuracy on new rows, (n,)


def fitted(x: Floats, y: Floats, used: Floats, penalty: Floats) -> Floats:
    """Return logistic regressions (b, k) of batches of rows (b, r, k), by Newton's method."""
    theta = np.zeros((len(x), x.shape[2]))
    for _ in range(8):
        p = 1 / (1 + np.exp(-np.einsum("brk,bk->br", x, theta)))
        g = np.einsum("brk,br->bk", x, used * (y - p)) - penalty * theta
        h = (x * (used * p * (1 - p))[..., None]).transpose(0, 2, 1) @ x + np.diag(penalty)
        theta = theta + np.linalg.solve(h, g[..., None])[..., 0]
    return theta


def auroc(score: Floats, y: Floats) -> float:
    """Return the AUROC; NaN for one class."""
    positives = y.sum()
    if not 0 < positives < len(y):
        return float("nan")
    ranks = rankdata(score)[y > 0].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * (len(y) - positives)))


def simulated(world: World, rows: int, seeds: int, number: int) -> Simulated:
    """Draw one world, and compare both models with each seed."""
    g, n, d = np.random.default_rng([number, rows]), INSTITUTIONS, COLUMNS
    common, other = 2 * g.normal(size=(2, d)) / np.sqrt(d)
    differs = np.arange(n) >= (n // 2 if world.halves else n - 1)
    slopes = np.where(differs[:, None], world.last(common, other), common)
    odds = world.log_odds * np.where(np.arange(n) % 2, 1, -1)
    x = np.insert(g.normal(size=(n, rows + NEW_ROWS, d)), 0, 1, axis=2)
    eta = np.einsum("nrk,nk->nr", x[..., 1:], slopes) + odds[:, None]
    y = (g.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(float)
    (x, new_x), (y, new_y) = (np.split(each, [rows], axis=1) for each in (x, y))
    order = g.random((seeds, n, rows)).argsort(axis=2)
    is_test = order < round(TEST * rows)
    if world.null:
        half = np.where(is_test, -1, g.random(is_test.shape))
        rank = half.argsort(axis=2).argsort(axis=2) - is_test.sum(axis=2, keepdims=True)
        first = rank < (~is_test).sum(axis=2, keepdims=True) / 2
        parts = [~is_test & first, ~is_test & ~first]
    else:
        parts = [~is_test]
    flat = (np.broadcast_to(x, (seeds, *x.shape)).reshape(-1, rows, d + 1),
            np.broadcast_to(y, (seeds, *y.shape)).reshape(-1, rows))  # fmt: skip
    weak = np.append(1e-6, np.ones(d))
    thetas = [
        fitted(*flat, part.reshape(-1, rows).astype(float), weak).reshape(seeds, n, -1)
        for part in parts
    ]
    if not world.null:
        thetas.append(shared(x, y, ~is_test))
    scores = [np.einsum("nrk,snk->snr", x, theta) for theta in thetas]
    tests = is_test.sum(axis=2)
    right = [((score > 0) == y) & is_test for score in scores]
    new = [((np.einsum("nrk,snk->snr", new_x, t) > 0) == new_y).mean(axis=2) for t in thetas]
    ranked = [
        [[auroc(score[s, i][of], y[i][of]) for i, of in enumerate(is_test[s])]
         for s in range(seeds)] for score in scores
    ]  # fmt: skip
    return Simulated(
        (right[1].sum(axis=2) - right[0].sum(axis=2)) / tests,
        np.array(ranked[1]) - np.array(ranked[0]),
        y.mean(axis=1),
        (new[1] - new[0]).mean(axis=0),
    )


def shared(x: Floats, y: Floats, is_train: Bools) -> Floats:
    """Return common slopes with an intercept of each institution, (S, n, k)."""
    seeds, n, rows = is_train.shape
    own = np.repeat(np.eye(n), rows, axis=0)
    x_rk = np.hstack([own, x[..., 1:].reshape(n * rows, -1)])
    penalty = np.append(np.full(n, 1e-6), np.ones(x.shape[2] - 1))
    theta = np.concatenate([
        fitted(x_rk[None], y.reshape(1, -1), used.reshape(1, -1).astype(float), penalty)
        for used in is_train
    ])  # fmt: skip
    common = np.broadcast_to(theta[:, None, n:], (seeds, n, theta.shape[1] - n))
    return np.concatenate([theta[:, :n, None], common], axis=2)


def rarer(made: Simulated, rows: int) -> Floats:
    """Return the rows of the rarer class, (n,)."""
    return rows * np.minimum(made.positives, 1 - made.positives)


def before(made: Simulated, seeds: int, rows: int) -> list[str]:
    """Return the advice until 0.2.0, in today's words."""
    answers, can_n = [], TEST * rarer(made, rows) >= MIN_ROWS
    for i in range(INSTITUTIONS):
        gain, ranking = (
            paired.interval([*of[:seeds, i, None]], RATIO) for of in (made.accuracy, made.auroc)
        )
        answer = advice.advise(Evidence(True, gain, ranking))
        answers.append(answer if can_n[i] else advice.NOT_KNOWN)
    return answers


def after(made: Simulated, seeds: int, rows: int) -> list[str]:
    """Return today's advice."""
    n, rarer_n, estimates = INSTITUTIONS, rarer(made, rows), []
    can_n = rarer_n * (1 - (1 - TEST) ** seeds) >= MIN_ROWS
    for of, rows_n in ((made.accuracy, np.full(n, TEST * rows)), (made.auroc, TEST * rarer_n)):
        ends = np.full((n, 3), np.nan)
        if can_n.any():
            ratio_n = np.full(can_n.sum(), RATIO)
            sampled = effects.sampled([*of[:seeds, can_n].T], ratio_n, rows_n[can_n])
            ends[can_n] = effects.shrunk(*sampled, advice.RELEVANT)
        estimates.append(ends)
    return [
        advice.advise(Evidence(True, tuple(gain), tuple(ranking)))
        for gain, ranking in zip(*estimates, strict=True)
    ]


USES = (advice.USE, advice.USE_AFTER_THRESHOLD)
ANSWERS = {"use": USES, "do not use": (advice.DO_NOT_USE,), "no gain": (advice.NO_GAIN,),
           "not known": (advice.NOT_KNOWN,)}  # fmt: skip


def table(name: str, rows_of: tuple[int, ...], worlds: int) -> list[str]:
    """Return lines of a world: rows, institutions, expected gain, and answers in percent."""
    world, lines = WORLDS[name], []
    for rows in rows_of:
        made = [simulated(world, rows, max(SEEDS), number) for number in range(worlds)]
        gain_n = 100 * np.mean([each.new for each in made], axis=0)
        differs = np.arange(INSTITUTIONS) >= (INSTITUTIONS - 1)
        roles = {"all": ~differs | True}
        if not world.halves and world.last is not _same:
            roles = {"the others": ~differs, "the last": differs}
        for role, of in roles.items():
            expected = 0.0 if world.null else gain_n[of].mean()
            for seeds in SEEDS:
                cells = []
                for rule in (before, after):
                    answers = Counter(
                        answer for each in made
                        for answer, is_in in zip(rule(each, seeds, rows), of, strict=True) if is_in
                    )  # fmt: skip
                    total = answers.total() / 100
                    cells += [
                        f"{sum(answers[key] for key in keys) / total:.1f}"
                        for keys in ANSWERS.values()
                    ]
                lines.append(
                    f"| {name} | {rows} | {role} | {expected:+.1f} | {seeds} "
                    f"| {' | '.join(cells)} |"
                )
    return lines


def optimism(rows: int, strength: float, number: int) -> float:
    """Return the optimism of settings that the first seed has chosen, mean over institutions."""
    g, n, d, seeds = np.random.default_rng([number, rows]), INSTITUTIONS, 10, max(SEEDS)
    slopes = strength * g.normal(size=(n, d)) / np.sqrt(d)
    x = np.insert(g.normal(size=(n, rows + NEW_ROWS, d)), 0, 1, axis=2)
    chance = 1 / (1 + np.exp(-np.einsum("nrk,nk->nr", x[..., 1:], slopes)))
    y = (g.random(chance.shape) < chance).astype(float)
    rank = g.random((seeds, n, rows)).argsort(axis=2).argsort(axis=2) / rows
    is_test, is_validation = rank < TEST, rank >= 1 - VALIDATION
    right = []
    for columns, penalty in itertools.product((d, d // 2, 2), 10.0 ** np.arange(-2, 3)):
        of = x[..., : columns + 1]
        weak = np.append(1e-3, np.full(columns, penalty))
        theta = np.stack([
            fitted(of[:, :rows], y[:, :rows], used.astype(float), weak)
            for used in ~is_test & ~is_validation
        ])  # fmt: skip
        right.append((np.einsum("nrk,snk->snr", of, theta) > 0) == y)
    right_csnr = np.array(right)
    valid_cn = (right_csnr[:, 0, :, :rows] & is_validation[0]).sum(axis=2)
    tested_csnr = right_csnr[:, 1:, :, :rows] & is_test[1:]
    tested_cn = tested_csnr.sum(axis=(1, 3)) / is_test[1:].sum(axis=(0, 2))
    beyond_cn = 100 * (tested_cn - right_csnr[:, 1:, :, rows:].mean(axis=(1, 3)))
    return float(beyond_cn[valid_cn.argmax(axis=0), np.arange(n)].mean() - beyond_cn.mean())


def tuning(worlds: int) -> list[str]:
    """Return the optimism of tuning on the first seed, with twice its standard error."""
    lines = ["| labels | rows | optimism, points |", "|---|---|---|"]
    for labels, strength in (("a coin", 0.0), ("logistic", 2.0)):
        for rows in (60, 240):
            of = [optimism(rows, strength, number) for number in range(worlds)]
            error = 2 * np.std(of, ddof=1) / np.sqrt(worlds)
            lines.append(f"| {labels} | {rows} | {np.mean(of):+.2f} ± {error:.2f} |")
    return lines


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="Error rates of advice in known worlds.")
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs="+", default=(100, 240, 600))
    chosen, console = parser.parse_args(), Console()
    lines = [
        "| world | rows | institutions | expected gain | seeds | before: "
        + " | ".join(ANSWERS) + " | after: " + " | ".join(ANSWERS) + " |",
        "|---|---|---|---|---|" + "---|" * (2 * len(ANSWERS)),
    ]  # fmt: skip
    with threadpool_limits(1):
        tuned = tuning(chosen.worlds)
        console.print(*tuned, sep="\n")
        for name in WORLDS:
            lines += table(name, tuple(chosen.rows), chosen.worlds)
            console.print(lines[-1])
    fill(PAGE, {"advice": lines, "tuning": tuned})


if __name__ == "__main__":
    main()
