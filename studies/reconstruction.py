"""Reconstruction of labels from rounded losses and accuracies: `python -m studies.reconstruction`.

The relay knows all columns of an institution's rows except the labels, which are random, and the
start model of each run; each run reports loss and accuracy of that model on its test part, rounded
as a node rounds them (`disclosure.py`). Both are linear in the labels up to
rounding, so the most probable labels under a normal prior follow from a linear system. The table
shows the share of correct labels (0.50: chance) if the relay knows each run's test part (it was
drawn by the run's seed), if it does not but all runs share one test part, and if each run has a new
one: over all rows, and in the second case also over that part. Means of twelve trials, about two
minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.app.institution.security.disclosure import precision, protected
from coterie.app.institution.security.policy import ReportPolicy
from coterie.strategies.protocol import Report

Floats = npt.NDArray[np.float64]
Split = Literal["known", "fixed", "new"]
SETTINGS = (60, 0.5), (300, 0.2), (300, 0.9), (1000, 0.2)
"""Rows, and share of them in the test part."""
NUMBERS = (0.25, 0.5, 1.0, 2.0)
"""Reported numbers per row."""
TRIALS, COLUMNS, HIDDEN = 12, 10, 16


def start_models(x_nk: Floats, count: int, draw: np.random.Generator) -> Iterator[Floats]:
    """Yield (n, 2) log-probabilities that random networks with one hidden layer give the rows."""
    for _ in range(count):
        first = draw.uniform(-2, 2, (x_nk.shape[1], HIDDEN)) / math.sqrt(x_nk.shape[1])
        last = draw.uniform(-2, 2, (HIDDEN, 2)) / math.sqrt(HIDDEN)
        outputs = np.maximum(x_nk @ first + draw.uniform(-1, 1, HIDDEN), 0) @ last
        yield outputs - np.logaddexp(*outputs.T)[:, None]


def solved(rows: int, share: float, runs: int, split: Split, trial: int) -> tuple[float, float]:
    """Return the share of correct labels, of all rows and of the last test part."""
    draw = np.random.default_rng([rows, runs, trial])
    x_nk, label_n = draw.normal(size=(rows, COLUMNS)), draw.integers(0, 2, rows)
    m = int(rows * share)
    test = draw.permutation(rows)[:m]
    sides, values, variances = [], [], []
    for score in start_models(x_nk, runs, draw):
        if split != "fixed":
            test = draw.permutation(rows)[:m]
        chance_n = np.full(rows, m / rows)
        if split == "known":
            chance_n = np.isin(np.arange(rows), test).astype(np.float64)
        # A row's loss is `mean` plus or minus `half`, and it is right by 1/2 plus or minus 1/2.
        mean_n, half_n = -score.mean(axis=1), (score[:, 0] - score[:, 1]) / 2
        sign_n, best_n = 2 * label_n - 1, np.where(half_n < 0, 1, 0)
        loss = float((mean_n + half_n * sign_n)[test].mean())
        accuracy = float((best_n == label_n)[test].mean())
        metrics = {"test_loss": loss, "test_accuracy": accuracy}
        sizes = {"train": rows - m, "validation": 0, "test": m}
        reported = protected(Report(0, 0, metrics, ()), ReportPolicy(), sizes).metrics
        unknown_n = chance_n * (1 - chance_n)
        for name, base_n, slope_n in (
            ("test_loss", mean_n, half_n),
            ("test_accuracy", np.full(rows, 0.5), best_n - 0.5),
        ):
            value = float(reported[name] or 0.0)
            step = precision(m)
            if name == "test_loss":
                step *= 10 ** math.floor(math.log10(value))
            spread = unknown_n @ ((base_n - base_n.mean()) ** 2 + slope_n**2)
            sides.append(chance_n * slope_n)
            values.append(m * value - chance_n @ base_n)
            variances.append(spread + (m * step) ** 2 / 12)
    scale = 1 / np.sqrt(np.array(variances))
    a, b = np.array(sides) * scale[:, None], np.array(values) * scale
    guess_n = (a.T @ np.linalg.solve(a @ a.T + np.eye(len(a)), b) > 0).astype(int)
    right_n = guess_n == label_n
    return float(right_n.mean()), float(right_n[test].mean())


def main() -> None:
    """Print the table."""
    print("| rows | in the test part | numbers per row | known | fixed | of its part | new |")
    print("|---|---|---|---|---|---|---|")
    for rows, share in SETTINGS:
        for numbers in NUMBERS:
            runs = max(1, int(numbers * rows / 2))
            result = {
                split: np.mean([solved(rows, share, runs, split, t) for t in range(TRIALS)], axis=0)
                for split in ("known", "fixed", "new")
            }
            cells = result["known"][0], *result["fixed"], result["new"][0]
            shown = " | ".join(f"{cell:.2f}" for cell in cells)
            print(f"| {rows} | {share:g} | {numbers:g} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
